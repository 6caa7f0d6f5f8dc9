"""The numbers that hvdlite keeps about a job while it runs."""
