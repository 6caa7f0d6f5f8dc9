"""What a tensor is to everything below the front ends."""
