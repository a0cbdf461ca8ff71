"""Data from elsewhere: sources, downloads, archives, checksums."""
