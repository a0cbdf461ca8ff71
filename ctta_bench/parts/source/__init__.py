"""Source data: statistics of its features, and its images beside the stream."""
