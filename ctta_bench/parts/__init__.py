"""What methods are made of: adapters, losses, views, teachers, memories; no method by name."""
