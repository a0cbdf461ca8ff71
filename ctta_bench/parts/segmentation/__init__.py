"""Segmentation: views at several scales, labels of pixels, dropout and masks of a segmentor."""
