"""The bytes of one rank's blocks on device, host and disk; which block is where, ``cache/`` decides."""
