"""``hvdrun top``: what each rank of a running job does, as it goes on."""
