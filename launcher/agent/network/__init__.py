"""The networks of an agent's host: its interfaces, and tests of connections to other hosts."""
