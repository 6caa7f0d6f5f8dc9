"""The launcher behind ``hvdrun``: places the ranks of a job, starts them, relays their output and ends them."""
