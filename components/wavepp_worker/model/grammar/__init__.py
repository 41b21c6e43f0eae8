"""Answers that must match a grammar or a JSON schema."""
