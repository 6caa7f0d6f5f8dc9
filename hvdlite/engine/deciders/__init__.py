"""Deciders: which batches the ranks of a group run, and in which order."""
