"""Rounds: how all ranks agree on a request's endpoint ahead of time (paper, sections 4.2 to 4.5)."""
