"""The ranks of an agent's host: their processes, their input, and their connections."""
