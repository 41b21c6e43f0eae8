"""The generation engine: continuous batching from KV that prefill workers hand over. It runs no prompt."""
