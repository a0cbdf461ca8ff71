"""Run folders read into tidy frames, every number recounted from predictions."""
