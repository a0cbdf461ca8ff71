"""Reading run folders into tidy frames; every number is recounted from predictions."""
