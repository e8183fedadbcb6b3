"""What the launchers of a job's other nodes are told, of what this one was told.

Pure.
"""

from __future__ import annotations

from rankspawn.launch.command_line import (
    all_flags,
    read_torchruns_variables,
    read_variables,
    split_flags,
)

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# Flags that say something about one node only, or that the words for the others have anew.
_NOT_FOR_OTHERS = frozenset(
    {
        *("master", "rank", "host", "nnodes", "node_rank", "master_addr", "master_port"),
        *("local_addr", "rdzv_endpoint", "rdzv_backend", "hosts", "ssh"),
    }
)


def words_for_others(
    argv: Sequence[str], environ: Mapping[str, str], given: Collection[str]
) -> tuple[list[str], list[str]]:
    """The flags that hold on every node, and the script with its arguments.

    Args:
        argv: What was typed on this one.
        environ: Its environment, whose variables the others may not have.
        given: The fields that something filled.
    """
    table = all_flags()
    found, words = split_flags(argv, table)
    typed = {flag.field for flag, _ in found.values()}
    variables = read_variables(environ, table, ignored=frozenset())
    # Those that counted, which the command line may have overruled.
    told = [(flag, text) for flag, text in variables.values() if flag.field in {*given} - typed]
    pet = [
        both for name, both in read_torchruns_variables(environ, table).items() if name not in found
    ]
    flags = []
    for flag, text in (*found.values(), *pet, *told):
        if flag.name not in _NOT_FOR_OTHERS:
            for part in text.splitlines() if flag.repeats else [text]:
                flags += [flag.written] if flag.is_bare else [flag.written, part]
    if words and words[0].startswith("-"):
        words.insert(0, "--")
    return flags, words
