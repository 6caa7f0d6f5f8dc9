"""Collectives over the memory of CUDA devices, by NVIDIA's NCCL."""
