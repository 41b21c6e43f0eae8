"""The kinds of cache that a group of layers can have, one class each."""
