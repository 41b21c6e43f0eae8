"""A model's directory: what its files say, and how they are read."""
