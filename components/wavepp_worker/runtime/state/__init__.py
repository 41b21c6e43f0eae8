"""One rank's side of every request's life, and where its blocks' bytes are."""
