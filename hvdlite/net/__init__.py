"""How processes reach each other: listeners, callers, proofs of identity, and what a thread sleeps on."""
