"""What happened when on every rank, recorded and written for ui.perfetto.dev."""
