"""What hvdlite sees of a job while it runs: the black box of each rank, and the limits that its host sets."""
