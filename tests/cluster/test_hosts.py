"""Lists of hosts as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankspawn.cluster.engine import Node
from rankspawn.cluster.hosts import parse_hostfile, read_hosts


@pytest.mark.parametrize(
    ("given", "nodes"),
    [
        ("a", [Node("a")]),
        ("a,b:2", [Node("a"), Node("b", 2)]),
        (" a , b:2 ,", [Node("a"), Node("b", 2)]),
        ("me@a:3", [Node("me@a", 3)]),
        ("10.0.0.1:2,10.0.0.2", [Node("10.0.0.1", 2), Node("10.0.0.2")]),
        ("[::1]:2,fe80::1", [Node("::1", 2), Node("fe80::1")]),
        (["a", "b:2"], [Node("a"), Node("b", 2)]),
        (("gpu-1.cluster",), [Node("gpu-1.cluster")]),
    ],
)
def test_a_list_names_hosts_and_maybe_how_many_ranks(given: Any, nodes: list[Node]) -> None:
    assert read_hosts(given) == nodes


@pytest.mark.parametrize("give", [str, Path])
def test_a_file_has_a_host_in_each_line(tmp_path: Path, give: Any) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\n\na slots=2\nb:3  # new\nc\nd max_slots=8 slots = 4\n")
    nodes = [Node("a", 2), Node("b", 3), Node("c"), Node("d", 4)]
    assert read_hosts(give(path)) == nodes


def test_a_line_that_says_something_else_is_named() -> None:
    with pytest.raises(ValueError, match="hostfile, line 2: 'b and c' is no `host`"):
        parse_hostfile("a\nb and c\n")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("", ValueError, "names no host"),
        ([], ValueError, "names no host"),
        ("a,b,a", ValueError, "name a twice.*say a:2"),
        ("a:0", ValueError, "a has '0' slots"),
        ("a:two", ValueError, "'a:two' is no host"),
        ("-oProxyCommand=x", ValueError, "is no host"),
        ("a b", ValueError, "'a b' is no host"),
        (3, TypeError, "a sequence of names, not 3"),
        ([1], TypeError, "a sequence of names"),
        ("/no/such/hostfile", FileNotFoundError, "hostfile"),
    ],
)
def test_what_makes_no_sense_is_refused(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_hosts(given)
