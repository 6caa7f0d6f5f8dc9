"""What the command line and the config file of hvdrun say, before anything is done about it."""
