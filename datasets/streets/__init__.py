"""Procedural street scenes: geometry, objects, weather."""
