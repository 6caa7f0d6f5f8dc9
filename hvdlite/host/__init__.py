"""Processes, memory, CPUs and limits of this host."""
