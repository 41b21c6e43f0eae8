"""The hand-off over NIXL: the decode worker reads the ranks' registered memory."""
