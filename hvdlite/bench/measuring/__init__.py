"""What every study measures with: systems and their tensors, collectives, turns, and the rows of the table."""
