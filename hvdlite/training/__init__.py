"""The framework-free half of training: names, buckets, compression, overlap with backward, broadcasts of state."""
