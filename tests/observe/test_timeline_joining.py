"""hvdrun timeline: files of ranks are joined by one clock, and what is no such file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hvdlite as hvd
from tests.harness import process_ranks
from tests.launcher.hvdrun import run
from tests.unit.launcher.timeline.test_joining import head


def _steps() -> None:
    hvd.init()
    for step in range(30):
        hvd.allreduce(np.ones(1000), name=f"x{step % 3}")
    hvd.shutdown()


def test_files_of_real_ranks_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    as_hosts = {"HVDLITE_TIMELINE": str(path), "HVDLITE_PAGE": "0"}  # in a page, another than the first rank may decide
    for outcome in process_ranks(2, _steps, environ=as_hosts):
        outcome.result()
    truth = json.loads((tmp_path / "t.json.rank1").read_text())
    other = [{**event, "ts": event["ts"] + 1e9} if "ts" in event else event for event in truth]
    other[0] = {**other[0], "args": {**other[0]["args"], "clock": "another"}}
    (tmp_path / "t.json.rank1").write_text(json.dumps(other))
    files = [str(tmp_path / f"t.json.rank{rank}") for rank in range(2)]
    for given in (files, [*files, str(path)]):  # as F* is, before and after
        ended = run("timeline", *given)
        assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"{path} has all of them, for https://ui.perfetto.dev\n2 rank(s) on 1 host(s), ")
    assert "x0, float64 1000" in ended.stdout
    joined = json.loads(path.read_text())
    assert len(joined) == len(truth) + len(json.loads((tmp_path / "t.json.rank0").read_text()))
    moves = {event["args"]["batch"]: event for event in joined if event.get("cat") == "move" and event["pid"] == 0}
    shared = [(moves[each["args"]["batch"]], each) for each in joined if each.get("cat") == "move" and each["pid"] == 1]
    assert len(shared) >= 30
    for one, two in shared:  # nobody is done before both have begun
        assert one["ts"] <= two["ts"] + two["dur"] + 0.01
        assert two["ts"] <= one["ts"] + one["dur"] + 0.01
    alone = run("timeline", str(path))
    assert alone.stdout == ended.stdout.partition("\n")[2]


_RANK = '[{"name":"hvdlite","pid":0,"ph":"M","args":{"host":"a","clock":"b","clock_us":%s,"epoch_us":0}}]'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "1", "[1]", '[{"name":"x"}]', '[{"name":"hvdlite","pid":0,"args":{}}]', "[" * 100000),
        *(_RANK % number for number in ("1e400", "NaN", "9" * 400)),
    ],
    ids=range(11),
)
def test_what_is_no_timeline_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    ended = run("timeline", str(tmp_path / "t.json"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"hvdrun: {tmp_path / 't.json'} is no timeline of hvdlite. See 'hvdrun --help'.\n"


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(json.dumps([head(0, "a", 0.0, 0.0)]))
    both = [str(tmp_path / name) for name in ("one.json", "two.json")]
    assert "say with -o where" in run("timeline", *both).stderr
    assert "has rank 0, and so has another" in run("timeline", *both, "-o", str(tmp_path / "all")).stderr
