"""This engine on one GPU, beside what the card can do and plain transformers."""
