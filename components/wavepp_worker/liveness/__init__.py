"""How a process notices that one of its threads, or another process, does not get on."""
