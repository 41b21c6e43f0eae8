"""Where the time of a wave goes on this machine, beside what the machine can do."""
