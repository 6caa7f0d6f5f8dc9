"""The file of a timeline is complete whenever it is opened: while it grows, under slow readers, after a kill -9."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdlite.observe.timeline import file as module
from hvdlite.observe.timeline.file import JsonArrayFile
from tests.harness.users import NOBODY, needs_root

_WRITER = """
import signal, sys
from hvdlite.observe.timeline.file import JsonArrayFile
from tests.harness.users import NOBODY, needs_root
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
while True:
    file = JsonArrayFile(sys.argv[1])
    print("ready", flush=True)
    for number in range(int(sys.argv[2])):
        file.append(b'{"a":%d,"b":"%s"}' % (number, b"x" * (number * 977 % 20000)))
    file.close()
    if len(sys.argv) > 3:
        break
"""


@pytest.fixture(autouse=True)
def _without_urg() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _numbers(path: Path) -> list[int]:
    return [event["a"] for event in json.loads(path.read_text())]


def _append(file: JsonArrayFile, *numbers: int) -> None:
    file.append(b",\n".join(b'{"a":%d}' % number for number in numbers))


def _grown(path: Path) -> None:
    file = JsonArrayFile(path)
    assert _numbers(path) == []
    for number in range(20):
        _append(file, 2 * number, 2 * number + 1)
        assert _numbers(path) == list(range(2 * number + 2))
    file.close()
    assert _numbers(path) == list(range(40))
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_it_grows_and_leaves_one_file(tmp_path: Path) -> None:
    _grown(tmp_path / "t.json")


def test_it_is_written_in_place_while_nobody_reads(tmp_path: Path) -> None:
    """Two files take turns, so that what is written is twice the length and not its square."""
    path = tmp_path / "t.json"
    file, seen = JsonArrayFile(path), set()
    for number in range(20):
        _append(file, number)
        seen.add(path.stat().st_ino)
    file.close()
    assert len(seen) == 2


@pytest.mark.parametrize("lacks", ["_lease", "_exchange"])
def test_file_systems_without_leases_or_exchanges_will_do(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, lacks, lambda *arguments: False)
    _grown(tmp_path / "t.json")


def test_what_a_reader_has_opened_does_not_change(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    file = JsonArrayFile(path)
    opened = []
    for number in range(8):
        _append(file, number)
        if number % 3 != 1:
            opened.append((number, path.open()))
    for number, reader in opened:
        with reader:
            assert json.load(reader)[-1] == {"a": number}
    _append(file, 8)
    assert _numbers(path) == list(range(9))
    file.close()


def test_a_reader_that_comes_amid_a_write_waits_for_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked the file up before the exchange, and opens it when it is hidden and written to."""
    path = tmp_path / "t.json"
    file = JsonArrayFile(path)
    _append(file, 0)
    read: list[str] = []
    readers = []
    write = module._write

    def write_while_somebody_opens(descriptor: int, data: bytes, at: int) -> None:
        readers.append(threading.Thread(target=lambda: read.append(file._next.read_text())))
        write(descriptor, data[:3], at)
        readers[-1].start()
        write(descriptor, data[3:], at + 3)

    monkeypatch.setattr(module, "_write", write_while_somebody_opens)
    for number in range(1, 20):
        _append(file, number)
        readers[-1].join()
    assert len(read) == 19
    for text in read:
        json.loads(text)
    file.close()


def test_it_can_be_loaded_at_any_instant_and_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    loaded = kills = 0
    for kill_after in (3, 17, 40, 0, 90, 8):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, path, "100"], stdout=subprocess.PIPE, start_new_session=True
        )
        with writer:
            try:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"ready\n"
                for _ in range(kill_after):
                    json.loads(path.read_text())
                    loaded += 1
            finally:
                writer.kill()
        assert writer.returncode == -signal.SIGKILL
        kills += 1
        json.loads(path.read_text())
    assert (loaded, kills) == (158, 6)
    ended = subprocess.run([sys.executable, "-c", _WRITER, path, "50", "once"], capture_output=True, check=True)
    assert ended.stdout == b"ready\n"
    assert _numbers(path) == list(range(50))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", [".", "fifo", "missing/t.json"])
def test_what_cannot_be_such_a_file_is_an_error(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError) as caught:
        JsonArrayFile(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)  # and not the hidden one
    assert [each.name for each in tmp_path.iterdir()] == ["fifo"]


def test_a_file_behind_a_link_of_proc_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "stdout").open("w") as file, pytest.raises(OSError, match="no regular file"):
        JsonArrayFile(f"/dev/fd/{file.fileno()}")


def test_what_is_in_the_way_of_the_hidden_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("before")
    (tmp_path / ".t.json.next").mkdir()
    with pytest.raises(OSError, match=r"\.t\.json\.next beside it is in the way"):
        JsonArrayFile(tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "before"


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    file = JsonArrayFile(path)
    for number in range(3):
        _append(file, number)
    write = os.pwrite

    def full(descriptor: int, data: memoryview, at: int) -> int:
        if at > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:1], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        _append(file, *range(3, 30))
    assert _numbers(path) == [0, 1, 2]
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "t.json")
    file = JsonArrayFile(tmp_path / "link")
    _append(file, 1)
    file.close()
    assert (tmp_path / "link").is_symlink()
    assert _numbers(tmp_path / "t.json") == [1]


@needs_root
@pytest.mark.parametrize("target", ["there.json", "missing.json"])
def test_a_link_that_another_user_planted_is_refused(target: str, tmp_path: Path) -> None:
    """By hvdlite itself: fs.protected_symlinks may be off."""
    (tmp_path / "there.json").write_text("precious")
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "t.json").symlink_to(tmp_path / target)
    os.chown(sticky / "t.json", NOBODY, NOBODY, follow_symlinks=False)
    (tmp_path / "own").symlink_to(sticky / "t.json")  # each link counts
    for path in (sticky / "t.json", tmp_path / "own"):
        with pytest.raises(OSError, match="another user") as caught:
            JsonArrayFile(path)
        assert caught.value.filename == str(path)
    assert (tmp_path / "there.json").read_text() == "precious"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["own", "sticky", "there.json"]
    assert [each.name for each in sticky.iterdir()] == ["t.json"]


@needs_root
def test_a_file_that_another_user_put_into_a_folder_of_all_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "t.json").touch()
    os.chown(tmp_path / "t.json", NOBODY, NOBODY)
    with pytest.raises(OSError, match="another user"):
        JsonArrayFile(tmp_path / "t.json")


def test_a_planted_hard_link_is_refused(tmp_path: Path) -> None:
    """Whether or not fs.protected_hardlinks is on."""
    (tmp_path / "precious").write_text("precious")
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    os.link(tmp_path / "precious", sticky / "t.json")
    with pytest.raises(OSError, match="hard links"):
        JsonArrayFile(sticky / "t.json")
    assert (tmp_path / "precious").read_text() == "precious"


def test_the_mode_and_the_owner_stay(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("before")
    path.chmod(0o600)
    owner = NOBODY if os.geteuid() == 0 else os.geteuid()
    os.chown(path, owner, -1)
    file = JsonArrayFile(path)
    for number in range(4):
        _append(file, number)
        assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o600 if number < 2 else 0o640, owner)
        if number == 1:
            path.chmod(0o640)  # while it is written
    file.close()


def test_hard_links_stay(tmp_path: Path) -> None:
    """One is there before, and one comes while the file grows."""
    path = tmp_path / "t.json"
    path.write_text("what an earlier job left, and this one does not need")
    os.link(path, tmp_path / "before")
    file = JsonArrayFile(path)
    _append(file, 0)
    assert _numbers(tmp_path / "before") == _numbers(path) == [0]
    (tmp_path / "before").unlink()
    _append(file, 1)
    _append(file, 2)
    os.link(path, tmp_path / "meanwhile")
    _append(file, 3)
    _append(file, 4)
    assert path.samefile(tmp_path / "meanwhile")
    assert _numbers(path) == [0, 1, 2, 3, 4]
    (tmp_path / "meanwhile").unlink()
    _append(file, 5)
    file.close()
    assert _numbers(path) == [0, 1, 2, 3, 4, 5]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("length", [249, 250, 255])
def test_it_may_have_the_longest_name_that_there_is(length: int, tmp_path: Path) -> None:
    _grown(tmp_path / ("ü" + (length - 7) * "t" + ".json"))


@pytest.mark.parametrize("appended", [0, 1, 2])
def test_a_second_writer_is_refused(appended: int, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    file = JsonArrayFile(path)
    for number in range(appended):
        _append(file, number)
    (tmp_path / "link").symlink_to(path)
    for name in (path, tmp_path / "link"):
        with pytest.raises(OSError, match="another job") as caught:
            JsonArrayFile(name)
        assert caught.value.filename == str(name)
    _append(file, appended)
    assert _numbers(path) == list(range(appended + 1))
    child = os.fork()  # it has all descriptors, and keeps no lock for that
    if child == 0:
        signal.pause()
    try:
        file.close()
        JsonArrayFile(path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
