"""The rendezvous, at which the ranks of a job find each other."""
