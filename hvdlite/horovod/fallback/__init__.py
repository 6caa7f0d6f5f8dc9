"""A folder for the end of ``PYTHONPATH``; see `hvdlite.compat`."""
