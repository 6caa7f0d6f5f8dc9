"""The agent of one host: starts its workers and ends them. It needs nothing but the standard library."""
