"""The public names that all front ends share, and the names of the numpy API."""
