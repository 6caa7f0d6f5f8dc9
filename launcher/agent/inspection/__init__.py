"""What an agent sees of the processes of its host: what their threads do, by the kernel's account and by Python's."""
