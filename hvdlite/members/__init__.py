"""Who is in a group, and where each member runs."""
