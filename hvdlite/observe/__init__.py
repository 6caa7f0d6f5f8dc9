"""What reads the observers of a session's groups: the black box."""
