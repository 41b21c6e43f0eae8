"""What measures WavePP. Nothing imports this package."""
