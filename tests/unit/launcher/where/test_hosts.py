"""Host lists and host files: one grammar, and errors that name the wrong part."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hvdlite.errors import BadHostSpec
from hvdlite.launcher.where.hosts import Host, is_local, parse_hosts, read_hostfile


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("localhost", (Host("localhost"),)),
        ("localhost:4", (Host("localhost", 4),)),
        ("a:2,b:12", (Host("a", 2), Host("b", 12))),
        (" a:1 , b ", (Host("a", 1), Host("b"))),
        ("node-1.cluster.example:8", (Host("node-1.cluster.example", 8),)),
        ("[fe80::1]:4", (Host("[fe80::1]", 4),)),
        ("[fe80::1%eth0]", (Host("[fe80::1%eth0]"),)),
        ("a,b,a", (Host("a"), Host("b"))),
        ("a:2,a:4,a", (Host("a", 2), Host("a", 4))),
        ("me@a:2,you.too@[::1]", (Host("a", 2, "me"), Host("[::1]", None, "you.too"))),
        ("n[08-10]:8", (Host("n08", 8), Host("n09", 8), Host("n10", 8))),
        ("n[1,3-4].x,b", (Host("n1.x"), Host("n3.x"), Host("n4.x"), Host("b"))),
        ("r[1-2]n[1-2]", (Host("r1n1"), Host("r1n2"), Host("r2n1"), Host("r2n2"))),
    ],
)
def test_lists_of_hosts(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a:",
            "a:-1",
            "a:x",
            "a:1:2",
            ",a",
            "a,,b",
            "a b",
            "@a",
            "a@",
            "a@b@c",
            "fe80::1",
            "[]",
            "[x]",
            "n[]",
        ),
        *(
            "n[1-]",
            "n[1",
            "n]1[",
            "-oProxyCommand=x",
            "me@-oProxyCommand=x",
            "-l@a",
            "a;rm",
            "a$(x)",
            "a`x`",
            "a|b",
            "a\nb",
        ),
        *("a&b", "a'b", 'a"b', "a*", "~a", "a\\b", "[::1%$(x)]", "ä"),
    ],
)
def test_what_is_no_host_is_named(text: str) -> None:
    with pytest.raises(BadHostSpec, match="is not a host; write name, name:slots or user@name:slots"):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a:0", "'a:0' has no slots; a host takes at least 1"),
        ("n[4-1]", "the range 4-1 goes from 4 to 1"),
        ("n[1-999999999]", "the range 1-999999999 goes"),
        ("n[1-999]x[1-999]", "stands for 998001 hosts"),
        ("me@a,you@a", "a is listed with two users, 'me' and 'you'"),
    ],
)
def test_lists_that_make_no_sense_are_named(text: str, complaint: str) -> None:
    with pytest.raises(BadHostSpec, match=complaint):
        parse_hosts(text)


def test_what_ssh_is_given_is_a_name_without_brackets() -> None:
    assert [host.address for host in parse_hosts("a,me@b:2,me@[fe80::1]")] == ["a", "me@b", "me@fe80::1"]


def test_a_path_is_probably_a_host_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostfile").write_text("a slots=1\n")
    monkeypatch.chdir(tmp_path)
    for text in ("hostfile", "some/where"):
        with pytest.raises(BadHostSpec, match=f"did you mean --hostfile {text}"):
            parse_hosts(text)


def test_a_host_file_may_have_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# the cluster\n\na slots=4\nb:2   # the old one\nc\n d  slots = 3 \ne slots=2 max_slots=8\n")
    expected = Host("a", 4), Host("b", 2), Host("c"), Host("d", 3), Host("e", 2)
    assert read_hostfile(str(path)) == expected


def test_a_host_file_may_be_of_an_editor_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbfa slots=4\r\nb:2\r\n")
    assert read_hostfile(str(path)) == (Host("a", 4), Host("b", 2))


def test_a_host_file_names_its_wrong_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a slots=4\nb slots=many\n")
    with pytest.raises(BadHostSpec, match="hosts, line 2: 'b slots=many' is not a host; write name, 'name slots=4'"):
        read_hostfile(str(path))


def test_an_empty_or_missing_host_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(BadHostSpec, match="lists no host"):
        read_hostfile(str(tmp_path / "empty"))
    with pytest.raises(BadHostSpec, match="cannot be read: No such file"):
        read_hostfile(str(tmp_path / "missing"))


def test_this_machine_has_several_names() -> None:
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.0.0.2", "[::1]", socket.gethostname())))
    assert not any(map(is_local, ("node17.example", "203.0.113.250", "[2001:db8::1]", "0x7f.1")))
