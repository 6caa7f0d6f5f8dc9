"""The stream between hvdrun and an agent, as both ends know it. It needs nothing but the standard library."""
