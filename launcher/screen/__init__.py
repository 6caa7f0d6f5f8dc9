"""hvdrun's output."""
