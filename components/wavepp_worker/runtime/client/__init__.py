"""The engine: the client of one replica's rank processes."""
