"""How the hosts reach each other: their interfaces, which addresses are tried, and the connect test between them."""
