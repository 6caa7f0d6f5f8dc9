"""For all studies: systems and their tensors, collectives, turns, and the rows of the table."""
