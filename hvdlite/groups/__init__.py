"""Groups of ranks: how they connect, what they run, and how they end; and the process sets of a session."""
