"""How the ranks of a job find each other before any of them can talk to another."""
