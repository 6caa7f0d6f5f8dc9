"""Attacks on running jobs, each tried with raw sockets from outside or by a user who has nothing to do with the job."""
