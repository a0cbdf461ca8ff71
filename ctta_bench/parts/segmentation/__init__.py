"""Segmentation: views at several scales, labels of pixels, dropout at test time, masks."""
