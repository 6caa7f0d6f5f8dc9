"""No file that a user names is written through a link that another user has planted; the user's own links work."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdlite.host.descriptors import followed, opened, write
from hvdlite.launcher.job.logs import Logs
from hvdlite.launcher.timeline.command import timeline
from hvdlite.launcher.top.rows import View
from hvdlite.launcher.top.screen import export
from tests.harness.users import NOBODY, needs_root


def _timeline(name: str) -> Callable[[Path], object]:
    """`hvdrun timeline` with the path as the option ``name``."""

    def write(path: Path) -> None:
        (trace := path.parent / "one.json").write_text(json.dumps([_HEAD]))
        assert timeline.callback is not None
        timeline.callback(
            **{"files": (trace,), "output": None, "picture": None, "begin_s": None, "end_s": None, name: path}
        )

    return write


_HEAD = {"name": "hvdlite", "pid": 0, "ph": "M", "args": {"host": "a", "clock": "b", "clock_us": 0, "epoch_us": 0}}
_OWNER = NOBODY, NOBODY


def _keep_box(path: Path) -> None:
    link = os.readlink(path) if path.is_symlink() else None
    logs = Logs(str(path.parent.parent), 1)  # removes what is there
    if link is not None:
        path.symlink_to(link)
        os.chown(path, *_OWNER, follow_symlinks=False)
    logs.keep_box(0, b"{}")
    logs.close()
    if logs.problem:
        raise PermissionError(logs.problem)


WRITERS: dict[str, Callable[[Path], object]] = {
    "t.json": lambda path: write(path, b"{}"),
    "joined.json": _timeline("output"),
    "t.svg": _timeline("picture"),
    "top.svg": lambda path: export(View(1, "train", 1.0, "", 0.0, [], None, {}), path),
    "rank.0/stdout": lambda path: Logs(str(path.parent.parent), 1).close(),
    "rank.0/blackbox": _keep_box,
}


@needs_root
@pytest.mark.parametrize("name", WRITERS)
def test_a_planted_link_is_not_followed(name: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (path := tmp_path / "sticky" / name).parent.mkdir(parents=True)
    (tmp_path / "sticky").chmod(0o1777)
    for target in ("precious", "missing"):
        path.symlink_to(tmp_path / target)
        os.chown(path, *_OWNER, follow_symlinks=False)
        with pytest.raises(PermissionError, match="another user"):
            WRITERS[name](path)
        path.unlink()
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "rank.0/blackbox"])
def test_ones_own_links_are_followed_and_the_file_stays_what_it_was(name: str, tmp_path: Path) -> None:
    (path := tmp_path / "named" / name).parent.mkdir(parents=True)
    (there := tmp_path / "there").write_text("before")
    there.chmod(0o600)
    os.link(there, tmp_path / "other name")
    path.symlink_to(tmp_path / "link")
    (tmp_path / "link").symlink_to("there")
    WRITERS[name](path)
    assert path.is_symlink()
    assert there.read_text() != "before"
    assert there.samefile(tmp_path / "other name")
    assert stat.S_IMODE(there.stat().st_mode) == 0o600


def test_links_of_the_kernel_and_circles(tmp_path: Path) -> None:
    read, written = os.pipe()
    write(f"/dev/fd/{written}", b"to a pipe")
    os.close(written)
    with open(read, "rb") as reader:
        assert reader.read() == b"to a pipe"
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="levels of symbolic links"):
        followed(tmp_path / "a")
    with pytest.raises(IsADirectoryError):
        opened(tmp_path, os.O_WRONLY)


def test_no_half_of_a_black_box_stays_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hvdlite.launcher.job.logs.write", full)
    logs = Logs(str(tmp_path), 1)
    logs.keep_box(0, b'{"rank": 0}')
    logs.close()
    assert "No space left" in logs.problem
    assert sorted(each.name for each in (tmp_path / "rank.0").iterdir()) == ["stderr", "stdout"]
