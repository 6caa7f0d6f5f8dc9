"""What ranks and hvdrun agree on."""

from typing import Final

MOST_BYTES: Final = 1 << 20
"""Events of one call."""
