"""Corrupted sets made from clean images."""
