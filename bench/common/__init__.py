"""What several measurements share: traffic, tables, figures."""
