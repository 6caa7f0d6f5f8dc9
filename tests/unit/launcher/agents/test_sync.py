"""--sync: what is copied, what is left out, and what becomes of it."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from hvdlite.errors import LaunchError
from hvdlite.launcher.agent.archive import Archive
from hvdlite.launcher.agents import sync
from hvdlite.launcher.stream.fields import read
from hvdlite.launcher.stream.frames import FrameError
from hvdlite.launcher.stream.questions import Unpack


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with code, a cache, and links that lead inside and outside."""
    (tmp_path / "outside").write_text("outside\n")
    folder = tmp_path / "tree"
    for name in ("train.py", "package/model.py", "package/__pycache__/model.pyc", ".venv/bin/python", "data/big"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}\n")
    (folder / "inside").symlink_to("train.py")
    (folder / "out").symlink_to("../outside")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def archive_of(folder: Path) -> bytes:
    packed = io.BytesIO()
    sync.pack(folder, packed)
    return packed.getvalue()


def unpack(data: bytes) -> Path:
    archive = Archive()
    for start in range(0, len(data), 100):
        archive.write(data[start : start + 100])
    return Path(archive.unpack("tree-1"))


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_without_git_everything_but_caches_is_copied(tree: Path, home: Path) -> None:
    there = unpack(archive_of(tree))
    assert there.is_relative_to(home / ".cache")
    assert names_in(there) == {"train.py", "package/model.py", "data/big", "inside", "out"}
    assert (there / "inside").readlink() == Path("train.py")
    assert (there / "out").read_text() == "outside\n"
    assert not (there / "out").is_symlink()


def test_with_git_what_it_ignores_stays_here(tree: Path, home: Path) -> None:
    (tree / ".gitignore").write_text("data\n.venv\n__pycache__\n")
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True)
    assert names_in(unpack(archive_of(tree))) == {".gitignore", "train.py", "package/model.py", "inside", "out"}


def test_a_second_copy_brings_changes_removes_what_is_gone_and_keeps_results(tree: Path, home: Path) -> None:
    there = unpack(archive_of(tree))
    (there / "package/checkpoint").write_text("of a rank\n")
    (tree / "data/big").unlink()
    (tree / "data").rmdir()
    (tree / "data").write_text("a file now\n")
    (tree / "train.py").write_text("new\n")
    assert unpack(archive_of(tree)) == there
    assert names_in(there) == {"train.py", "package/model.py", "package/checkpoint", "data", "inside", "out"}
    assert ((there / "train.py").read_text(), (there / "data").read_text()) == ("new\n", "a file now\n")
    assert not list(there.parent.glob("tree-1.?????*/"))


def test_too_much_is_refused_with_what_to_do(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "MAX_BYTES", 40)
    with pytest.raises(LaunchError, match=r"list what the ranks do not need in \.gitignore"):
        archive_of(tree)


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside"])
def test_nothing_is_unpacked_outside_the_folder(name: str, home: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, name
        tar.addfile(member)
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack(packed.getvalue())
    assert list((home / ".cache/hvdlite/sync").rglob("link")) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "a\n", "x" * 201])
def test_a_folder_of_another_name_is_refused(name: str) -> None:
    assert read(Unpack, {"name": "tree-1"}) == Unpack("tree-1")
    with pytest.raises(FrameError, match="no valid 'name'"):
        read(Unpack, {"name": name})


def test_there_is_nothing_to_unpack_before_an_archive_has_come() -> None:
    with pytest.raises(ValueError, match="no archive for 'tree-1'"):
        Archive().unpack("tree-1")


def test_an_archive_that_is_damaged_is_refused(tree: Path, home: Path) -> None:
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpack(archive_of(tree)[:-200])


def test_files_links_and_folders_may_take_each_others_names(tree: Path, home: Path) -> None:
    there = unpack(archive_of(tree))
    (tree / "train.py").unlink()
    (tree / "train.py").mkdir()
    (tree / "train.py/part").write_text("a folder now\n")
    shutil.move(tree / "data", tree / "moved")
    (tree / "data").symlink_to("moved")
    (tree / "inside").unlink()
    assert unpack(archive_of(tree)) == there
    assert names_in(there) == {"train.py/part", "package/model.py", "moved/big", "out"}
    assert (there / "data/big").read_text() == "data/big\n"
    (tree / "data").unlink()
    shutil.move(tree / "moved", tree / "data")
    unpack(archive_of(tree))
    assert names_in(there) == {"train.py/part", "package/model.py", "data/big", "out"}
    assert not (there / "data").is_symlink()


def test_an_absolute_link_within_the_folder_leads_to_the_copy(tree: Path, home: Path) -> None:
    (tree / "absolute").symlink_to(tree / "data/big")
    (tree / "around").symlink_to("../tree/data/big")
    (tree / "loop").symlink_to("loop")
    there = unpack(archive_of(tree))
    for name in ("absolute", "around"):
        assert (there / name).resolve() == there / "data/big"
    assert (there / "loop").readlink() == Path("loop")


def test_a_folder_that_the_repository_around_it_ignores_is_copied_all_the_same(tree: Path, home: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tree.parent)], check=True)
    (tree.parent / ".gitignore").write_text("*\n")
    assert names_in(unpack(archive_of(tree))) == {"train.py", "package/model.py", "data/big", "inside", "out"}
