"""hvdrun's side of its agents."""
