"""This engine beside vLLM's CPU build: the same weights, prompts, cores, dtype and cache, one after the other."""
