"""Steps of training: alone on every rank, with hvdlite's optimizer, and with what a framework has of its own.

In the *bare* step all ranks compute at once but never communicate; what another step takes longer is the cost of data
parallelism. After every block's first step the ranks must have the same weights.
"""
