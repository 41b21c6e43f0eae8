"""Prompts that share prefixes which nobody has computed yet: bursts, trees, agents."""
