"""Random views of images, and images changed on purpose."""
