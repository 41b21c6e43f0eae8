"""How well prefixes survive as requests arrive (paper, section 5.7)."""
