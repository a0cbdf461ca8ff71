"""Source data: statistics of its features, and replay of its images during the stream."""
