"""A folder for ``PYTHONPATH``; see `hvdlite.compat`."""
