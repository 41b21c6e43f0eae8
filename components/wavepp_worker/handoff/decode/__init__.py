"""The decode side: claims a room and gathers all ranks' layers into its own KV."""
