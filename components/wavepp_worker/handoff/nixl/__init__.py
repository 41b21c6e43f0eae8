"""The NIXL library, and one worker's KV memory registered with it."""
