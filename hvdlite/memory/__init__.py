"""Memory that the ranks of a host share: the arena, its regions, and the files below them."""
