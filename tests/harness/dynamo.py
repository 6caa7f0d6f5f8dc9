"""Speeds up `torch._dynamo` for ranks that compile a lot: on import, turns off the timing of guards.

Dynamo times them for its log after every compilation, and flushes the processor's caches before that, which is half of
the work of compiling a short function.
"""

from torch._dynamo import guards

if hasattr(guards, "profile_guard_manager"):  # not in older torch
    guards.profile_guard_manager = lambda *_: 0.0
