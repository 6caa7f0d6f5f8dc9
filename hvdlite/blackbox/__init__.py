"""The black box of a rank: its format in shared memory, and what follows from its counts."""
