"""What this host says of processes, memory, CPUs and limits."""
