"""Jobs whose nodes are started by others, as by Kubernetes: each runs hvdrun, and node 0 takes the others as hosts."""
