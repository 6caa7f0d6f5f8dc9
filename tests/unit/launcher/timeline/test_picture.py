"""The picture of a timeline: what it shows of which time, and how large it gets."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hvdlite.blackbox.format import printable
from hvdlite.launcher.cli import main
from hvdlite.launcher.timeline.picture import draw
from hvdlite.launcher.timeline.trace import Batch, RankTrace

_SVG = "{http://www.w3.org/2000/svg}"


def _trace(rank: int, batches: int, host: str = "node") -> RankTrace:
    """A batch every 10 ms, which is negotiated for 2 ms, waits for 1 ms, and moves for 3 ms, a later rank's later."""
    trace = RankTrace(rank, host, "clock", 0.0, 0.0)
    for number in range(batches):
        at = 10e3 * number + 100 * rank
        spans = {"negotiate": (at, at + 2e3), "wait": (at + 2e3, at + 3e3), "move": (at + 3e3, at + 6e3)}
        trace.batches[0, number] = Batch("ALLREDUCE", spans, {"tensors": [["<w>", "float32", [2], 0, 0]]})
    return trace


def _drawn(text: str) -> tuple[list[str], int]:
    """The titles of spans, and the number of arrows."""
    root = ElementTree.fromstring(text)
    titles = [str(title.text) for title in root.iter(f"{_SVG}title")]
    return titles, sum(path.get("fill") == "none" for path in root.iter(f"{_SVG}path"))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_it_has_the_spans_of_each_rank_and_an_arrow_from_the_first_to_each_other(ranks: int) -> None:
    titles, arrows = _drawn(draw([_trace(rank, 3) for rank in range(ranks)]))
    assert titles.count("move 3.000 ms: ALLREDUCE of <w>") == 3 * ranks
    assert len(titles) == 9 * ranks
    assert arrows == 3 * (ranks - 1)


def test_it_shows_the_time_that_is_asked_for() -> None:
    titles, arrows = _drawn(draw([_trace(0, 10), _trace(1, 10)], 0.0205, 0.029))
    assert titles.count("negotiate 2.000 ms: ALLREDUCE of <w>") == 2
    assert (len(titles), arrows) == (6, 1)


def test_a_long_timeline_makes_no_larger_picture() -> None:
    assert len(draw([_trace(0, 20_000), _trace(1, 20_000)])) < 4 << 20  # of a quarter of the spans


@pytest.mark.parametrize("trace", [_trace(0, 0), _trace(0, 1, host='<&"'), _trace(0, 1, host="\x1b]0;\0")])
def test_it_is_an_svg_file_whatever_there_is(trace: RankTrace) -> None:
    root = ElementTree.fromstring(draw([trace]))
    assert f"rank 0 on {printable(trace.host)}" in [text.text for text in root.iter(f"{_SVG}text")]


def _written(folder: Path) -> str:
    """A timeline of one rank, with one batch that moved for 10 µs."""
    span = {"ph": "X", "pid": 0, "tid": 1, "name": "ALLREDUCE", "cat": "move", "ts": 5.0, "dur": 10.0}
    args = {"set": 0, "batch": 1, "tensors": [["w\x1b", "float32", [2], None, 1.0]]}
    head = {"host": "here", "clock": "c", "clock_us": 0, "epoch_us": 0}
    events = [{"name": "hvdlite", "ph": "M", "pid": 0, "args": head}, {**span, "args": args}]
    (folder / "t.json").write_text(json.dumps(events))
    return str(folder / "t.json")


def test_hvdrun_draws_a_timeline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", _written(tmp_path), "--picture", str(tmp_path / "t.svg")]) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    assert f"{tmp_path}/t.svg shows it" in shown.out
    assert _drawn((tmp_path / "t.svg").read_text()) == (["move 0.010 ms: ALLREDUCE of w?"], 0)
    assert "  w?, float32 2" in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "nan"], "'--from': nan is not a number of seconds."),
        (["--to", "1e308"], "'--to': 1e+308 is not in the range"),
        (["--from", "5", "--to", "1"], "--from 5 --to 1 has nothing to draw: the timeline covers 0 to 1e-05 seconds."),
        (["--from", "1"], "--from 1 has nothing to draw: the timeline covers 0 to 1e-05 seconds."),
        (["--from", "-1"], "--from -1 has nothing to draw: the timeline covers 0 to 1e-05 seconds."),
        (["--to", "0"], "--to 0 has nothing to draw: the timeline covers 0 to 1e-05 seconds."),
    ],
)
def test_a_time_without_anything_to_draw_is_refused(
    words: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["timeline", _written(tmp_path), "--picture", str(tmp_path / "t.svg"), *words]) == 2
    shown = capfd.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert message in shown.err
    assert not (tmp_path / "t.svg").exists()


def test_a_picture_may_end_after_the_timeline(tmp_path: Path) -> None:
    assert main(["timeline", _written(tmp_path), "--picture", str(tmp_path / "t.svg"), "--to", "1e9"]) == 0
    ElementTree.fromstring((tmp_path / "t.svg").read_text())
