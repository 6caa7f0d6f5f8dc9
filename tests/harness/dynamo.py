"""`torch._dynamo` for ranks that compile much: importing this leaves out how long the guards of a function take.

Dynamo times them for its log after every compilation, and before that it flushes the processor's caches: half of the
work of compiling a short function.
"""

from torch._dynamo import guards

if hasattr(guards, "profile_guard_manager"):  # not in older torch
    guards.profile_guard_manager = lambda *_: 0.0
