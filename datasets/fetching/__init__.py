"""Published data: where they come from, downloads, archives, checksums."""
