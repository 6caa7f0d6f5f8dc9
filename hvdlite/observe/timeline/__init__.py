"""The timeline: a file in Chrome's trace format of what each rank did when, which opens in Perfetto.

A `Recording` hears of each batch from the observers of a rank's groups, and has a thread that writes. `events` says
what is written, and `file` how, so that the file is complete at any instant.
"""
