"""How the processes of a host end: after whose signals, in what order, and also if the agent is killed."""
