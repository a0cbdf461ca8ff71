"""Hyper-parameter search: the same number of trials for every method, on hold-out domains only.

A method declares its `search_space`. Trial 0 uses the published values; the others are drawn at
random, from a seed, or lie on a grid. Each trial is a cell like any other. The lowest mean error
(the highest mIoU) wins; of equal trials the earliest, so that published values stay unless a trial
is better. The winner becomes a preset, written with everything needed to repeat the search.
"""
