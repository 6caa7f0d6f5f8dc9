"""What hvdrun decides, as pure code: the plan of a job, when it has ended, and with which exit code."""
