"""Random views of images, and predictions over them."""
