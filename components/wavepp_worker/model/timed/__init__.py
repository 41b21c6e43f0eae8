"""Models whose layers compute nothing and take the time that a cost model says."""
