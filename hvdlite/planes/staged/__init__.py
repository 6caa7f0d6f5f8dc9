"""The plane that takes the memory of GPUs through memory of the host, where there is no NCCL."""
