"""What finding and claiming reusable cache costs (paper, section 5.9)."""
