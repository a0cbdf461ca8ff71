"""Random views of images, and forward passes over views."""
