"""Which chunks make up the next wave (paper, section 4.6): lanes, the ring, wave budgets, the planners. Pure."""
