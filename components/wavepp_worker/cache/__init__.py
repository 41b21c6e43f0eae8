"""One rank's KV cache: blocks, the prefix tree that makes them reusable, and who holds what."""
