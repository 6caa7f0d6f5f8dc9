"""The threads of a rank: the coordinator negotiates, the executor moves bytes, and both sleep when idle."""
