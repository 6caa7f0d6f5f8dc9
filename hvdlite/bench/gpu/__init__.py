"""What calls of hvdlite on GPUs consist of."""
