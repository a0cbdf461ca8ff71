"""Source models: how they are named, built, loaded and fed."""
