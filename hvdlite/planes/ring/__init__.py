"""Collectives around a ring of stream sockets."""
