"""Shared by figures: canvas, colours, curves."""
