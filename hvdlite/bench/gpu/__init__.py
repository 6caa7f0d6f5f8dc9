"""What the benchmark does on GPUs only: times by the GPU's clock, ways to fuse, and the parts of one call."""
