"""What figures share: canvas, colours, curves."""
