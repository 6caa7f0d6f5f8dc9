"""Benchmarks that need test hosts."""
