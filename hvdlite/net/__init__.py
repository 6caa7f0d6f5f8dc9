"""Connections between processes: listeners, callers, proofs of identity, and poll loops."""
