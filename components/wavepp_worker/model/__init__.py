"""What a stage runs: layers on torch over a paged KV cache, and how a model is split and loaded."""
