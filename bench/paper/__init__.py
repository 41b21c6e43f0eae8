"""The paper's evaluation (section 5): its cells, on virtual devices or real processes, and its tables."""
