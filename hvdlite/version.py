"""The versions of this package and of its native library's interface, once."""

__version__ = "0.1.0"
NATIVE_ABI = 12
