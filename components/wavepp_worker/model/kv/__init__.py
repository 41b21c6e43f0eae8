"""The memory of keys, values and states, and where in it the tokens of a wave lie."""
