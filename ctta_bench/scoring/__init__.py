"""Metrics: how a stream is scored, summed, drawn and written."""
