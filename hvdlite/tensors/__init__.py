"""Tensors as everything below the front ends sees them."""
