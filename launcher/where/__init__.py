"""The hosts of a job: as users name them, and as schedulers have allocated them."""
