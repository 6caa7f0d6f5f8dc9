"""``hvdrun timeline``: joins the files of ranks, and says where the time went."""
