"""Warnings about delays: tensors that some ranks never submit, and a rank that is always the last."""
