"""The socket of a running hvdrun, at which other commands of the same user ask about its job."""
