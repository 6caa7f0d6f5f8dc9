"""What hvdrun reports of ranks: failures, stalls, causes of slowness, and where the time went."""
