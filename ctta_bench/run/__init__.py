"""One cell from its configuration to its record: open, prepare, run the stream, save."""
