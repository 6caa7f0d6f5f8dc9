"""The public names that all front ends share, and those of the numpy API."""
