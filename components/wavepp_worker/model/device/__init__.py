"""Where a stage computes: processors, GPUs and their streams, and how much memory they have."""
