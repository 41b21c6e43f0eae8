"""Planners on a virtual pipeline, without host and cache."""
