"""What the user sees."""
