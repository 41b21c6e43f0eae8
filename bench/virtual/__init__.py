"""A replica in one process on a virtual clock: production code around virtual devices."""
