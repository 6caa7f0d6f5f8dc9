"""Who keeps the others waiting: ranks that have not submitted a tensor, and a rank that is always the last."""
