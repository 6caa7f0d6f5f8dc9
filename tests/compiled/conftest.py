"""The process with torch that ranks are forked from."""

from __future__ import annotations

from tests.frontends.conftest import _torch_ranks as _torch_ranks
