"""The timeline: a file in Chrome's trace format of what each rank did when, which opens in Perfetto.

A `Recording` gets each batch from the observers of a rank's groups, and writes in a thread of its own. `events` makes
the text, and `file` keeps the file complete at any instant.
"""
