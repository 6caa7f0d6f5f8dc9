"""One suite that every data plane passes.

A plane joins with a file in ``joined/`` that defines ``PLANE``; nothing else changes. Ranks are threads, so that a
whole grid of dtypes, operations and sizes takes seconds; `tests.faults` uses processes.
"""
