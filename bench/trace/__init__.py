"""A public trace replayed on virtual devices."""
