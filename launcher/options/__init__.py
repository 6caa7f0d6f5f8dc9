"""Parses and checks hvdrun's command line and config file."""
