"""Procedural street scenes: geometry, objects and weather."""
