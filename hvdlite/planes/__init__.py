"""Whole collectives over memory, for the ranks of one group. `base` is the promise that every plane keeps."""
