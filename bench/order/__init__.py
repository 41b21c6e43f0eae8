"""Who is served first when not all that is reusable fits."""
