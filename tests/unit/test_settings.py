"""The table of settings: names, types, limits, and Horovod's names for the same knobs."""

from __future__ import annotations

import pytest

from hvdlite.settings import Settings, Start


def test_defaults_make_a_job_of_one() -> None:
    start = Start.read({})
    assert (start.rank, start.size, Settings.read({}).plane) == (0, 1, "auto")


def test_horovods_name_is_honoured_and_ours_wins() -> None:
    assert Settings.read({"HOROVOD_FUSION_THRESHOLD": "7"}).fusion_threshold == 7
    both = {"HOROVOD_FUSION_THRESHOLD": "7", "HVDLITE_FUSION_THRESHOLD": "8"}
    assert Settings.read(both).fusion_threshold == 8


@pytest.mark.parametrize(
    ("variable", "text", "hint"),
    [
        ("HVDLITE_FUSION_THRESHOLD", "64MB", "must be a whole number"),
        ("HVDLITE_FUSION_THRESHOLD", "-1", "must be at least 0"),
        ("HVDLITE_RING_CONNECTIONS", "0", "must be at least 1"),
        ("HVDLITE_RING_CONNECTIONS", "17", "must be at most 16"),
        ("HVDLITE_START_TIMEOUT", "1e9", "must be at most 1e\\+06"),
        ("HVDLITE_START_TIMEOUT", "nan", "must be at least 0"),
        ("HVDLITE_START_TIMEOUT", "soon", "must be a number"),
        ("HVDLITE_PLANE", "gloo", "must be one of auto, local, shm, ring"),
        ("HOROVOD_LOG_HIDE_TIME", "maybe", "must be 0 or 1"),
        ("HVDLITE_RANK", "1", "must be below HVDLITE_SIZE=1"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_legal(variable: str, text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint) as caught:
        read({variable: text})
    assert variable in str(caught.value)


def read(environ: dict[str, str]) -> tuple[Start, Settings]:
    return Start.read(environ), Settings.read(environ)


def test_the_secret_is_not_printed() -> None:
    assert "f" * 64 not in repr(Start.read({"HVDLITE_SECRET": "f" * 64}))


@pytest.mark.parametrize(
    ("text", "ports"),
    [("", None), ("40000-40100", range(40000, 40101)), ("40000", range(40000, 40001)), ("1-65535", range(1, 65536))],
)
def test_a_range_of_ports_has_both_its_ends(text: str, ports: range | None) -> None:
    assert Settings.read({"HVDLITE_PORT_RANGE": text}).ports == ports


@pytest.mark.parametrize("text", ["-", "4-", "-5", "0-5", "9-8", "1-65536", "1-2-3", "a-b", "1,2", " 1-2", "\u0661-2"])
def test_what_is_no_range_of_ports_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"HVDLITE_PORT_RANGE=.*40000-40100"):
        Settings.read({"HVDLITE_PORT_RANGE": text})
