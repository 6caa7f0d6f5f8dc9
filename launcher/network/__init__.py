"""Addresses on which hosts reach each other: interfaces, candidates, and the connect test."""
