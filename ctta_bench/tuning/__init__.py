"""Hyper-parameters by search: equal numbers of trials for all methods, on hold-out domains alone.

A method declares its `search_space`. Its trial 0 are the published values; the others are drawn
from a seed, or lie on a grid. Each trial is a cell like any other. The lowest mean error (the
highest mIoU) wins, and of equals the earliest, so that the published values stay where nothing is
better. What won is a preset, written with all that it takes to find it again.
"""
