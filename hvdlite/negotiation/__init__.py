"""What the ranks agree on and how: pure code with no thread, socket, file, clock or environment in it."""
