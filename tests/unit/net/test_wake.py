"""Bells that ring too late."""

from __future__ import annotations

import os

import pytest

from hvdlite.net.wake import Bell


def test_a_closed_bell_does_not_write_to_what_has_its_descriptor_next() -> None:
    bell = Bell()
    number = bell._fd
    bell.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        os.dup2(other, number)
        bell.release()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
    finally:
        os.close(other)
        if number != other:
            os.close(number)
