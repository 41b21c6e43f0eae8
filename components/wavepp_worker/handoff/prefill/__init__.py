"""The prefill side: rooms where decode workers find a prefill, and what each rank holds and serves of its KV."""
