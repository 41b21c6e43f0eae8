"""KV from every rank to the decode worker: what both sides see of it, its messages, and its transports."""
