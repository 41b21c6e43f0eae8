"""What computes attention over paged KV."""
