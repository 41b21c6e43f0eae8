"""One rank's side of every request's life."""
