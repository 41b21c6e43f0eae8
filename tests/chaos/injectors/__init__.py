"""How each fault is done to a process, and undone."""
