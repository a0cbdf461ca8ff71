"""Experiment files: one per table, figure and ablation, and the quickstart."""
