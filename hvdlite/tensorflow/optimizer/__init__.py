"""Gradients of a step, reduced over all ranks: those of a tape."""
