"""The generation engine: continuous batching from KV that a prefill worker hands over; no prompt is run here."""
