"""A job: planned, prepared, run and supervised."""
