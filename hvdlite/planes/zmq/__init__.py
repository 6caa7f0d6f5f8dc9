"""Collectives around a ring over ZeroMQ, in Python alone."""
