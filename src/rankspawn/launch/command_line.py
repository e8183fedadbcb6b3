"""The words of a command line, and the variables beside it, as flags with their texts.

Pure. A flag may be written with dashes or underscores, as ``--flag value`` or ``--flag=value``,
and shortened as long as it is clear which one is meant; the first word that is no flag is the
script, and nothing after it is looked at.

Two launchers' words are read here beside our own. What is clear in the words of one of them is
clear; a beginning that means different flags in both is the one of the launcher whose words the
rest of the line has.
"""

from __future__ import annotations

from rankspawn.launch.flag_values import is_switch_word
from rankspawn.launch.flags import FLAGS, PADDLE, TORCHRUN, Flag, HelpRequest, UsageError

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Found = dict[str, tuple[Flag, str]]


def all_flags() -> list[Flag]:
    """The whole table."""
    return [flag for group in FLAGS.values() for flag in group]


def is_torchruns(flags: Iterable[Flag]) -> bool:
    """Whether a command line with these flags is one of torchrun's: one of them has no other."""
    return any(flag.of == (TORCHRUN,) for flag in flags)


def split_flags(argv: Sequence[str], flags: Sequence[Flag]) -> tuple[Found, list[str]]:
    """The flags at the beginning of a command line, and what follows them.

    Returns:
        From the name of each flag to it and its text, the last one if it was repeated; and the
        words from the first one on that is no flag.

    Raises:
        UsageError: A flag is not known, or its value is missing.
    """
    by_name = {flag.name: flag for flag in flags}
    letters = {flag.letter: flag for flag in flags if flag.letter}
    found: Found = {}
    unclear: list[tuple[list[Flag], str]] = []
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        _answer(word)
        written, equals, text = word.partition("=")
        if not word.startswith("--") and word[1] in letters:
            flag = letters[word[1]]
            written, text = word[:2], word[2:].removeprefix("=")
            equals = "" if len(word) == 2 else "="
            candidates = [flag]
        else:
            candidates = _meant(written, by_name)
        if not candidates:
            raise UsageError(_unknown(word, by_name))
        candidates = [
            _own_tee(flag, text if equals else None, words, by_name) for flag in candidates
        ]
        if not equals:
            text = _take_value(candidates[0], words)
        if len(candidates) == 1:
            _keep(candidates[0], text, found)
        else:
            unclear.append((candidates, text))
    for candidates, text in unclear:
        flag = _settle(candidates, [flag for flag, _ in found.values()])
        found[flag.name] = (flag, text)
    return found, words


def _own_tee(flag: Flag, text: str | None, words: Sequence[str], table: Mapping[str, Flag]) -> Flag:
    """``--tee`` is torchrun's if what follows says which streams, and else our own."""
    if flag.name != "tee" or "tee_all" not in table:
        return flag
    given = text if text is not None else words[0] if words else ""
    is_streams = given != "" and set(given) <= set("0123456789:,")
    is_own = not is_streams and (text is None or is_switch_word(given))
    return table["tee_all"] if is_own else flag


def _keep(flag: Flag, text: str, found: Found) -> None:
    if flag.repeats and flag.name in found:
        text = f"{found[flag.name][1]}\n{text}"
    found[flag.name] = (flag, text)


def read_variables(
    environ: Mapping[str, str], flags: Sequence[Flag], *, ignored: frozenset[str]
) -> Found:
    """The flags that our own and Paddle's variables stand for; an empty variable is none."""
    return {
        flag.name: (flag, environ[flag.variable])
        for flag in flags
        if flag.of != (TORCHRUN,)
        and environ.get(flag.variable, "").strip()
        and flag.variable not in ignored
    }


def read_torchruns_variables(environ: Mapping[str, str], flags: Sequence[Flag]) -> Found:
    """The flags that ``PET_*`` stand for; an empty variable is none."""
    return {
        flag.name: (flag, environ[flag.torchruns_variable])
        for flag in flags
        if TORCHRUN in flag.of and environ.get(flag.torchruns_variable, "").strip()
    }


def help_text() -> str:
    """All flags, with their variables."""
    from textwrap import fill

    lines = [
        "usage: rankrun [flags] script.py [arguments of the script]",
        "       rankrun [flags] -m package.module [arguments]",
        "       rankrun [flags] program [arguments]",
        "",
        "Runs a script once per device, on this machine or on many. Dashes and underscores both",
        "work; the command line wins over the variable that stands beside a flag.",
    ]
    for title, flags in FLAGS.items():
        lines += ["", f"{title}:"]
        for flag in flags:
            if not flag.deprecated:
                letter = f"-{flag.letter}, " if flag.letter else ""
                lines.append(f"  {letter}{flag.written}  ({flag.variable})")
                indent = " " * 6
                text = f"no effect: {flag.instead}" if flag.instead else flag.help
                lines.append(fill(text, 96, initial_indent=indent, subsequent_indent=indent))
    return "\n".join(lines)


def _answer(word: str) -> None:
    if word in ("-h", "--help"):
        raise HelpRequest(help_text())
    if word == "--version":
        from rankspawn import __version__

        raise HelpRequest(f"rankspawn {__version__}")


def _meant(written: str, by_name: Mapping[str, Flag]) -> list[Flag]:
    """The flag that is written here; two if it depends on the rest of the line, none if unclear."""
    if not written.startswith("--"):
        return []
    name = written[2:].replace("-", "_")
    if name in by_name:
        flag = by_name[name]
        # Whole in one launcher's words, and the beginning of one in the other's.
        other = by_name.get(flag.begins)
        return [flag] if other is None else [flag, other]
    begun = [flag for flag in by_name.values() if name and flag.name.startswith(name)]
    if len(begun) == 1:
        return begun
    paddles, torchruns = ([flag for flag in begun if who in flag.of] for who in (PADDLE, TORCHRUN))
    if len(paddles) > 1 or len(torchruns) > 1:
        return []
    both = paddles + [flag for flag in torchruns if flag not in paddles]
    # Whether a value follows must be known before the rest is read.
    return both if len({flag.is_switch or flag.is_bare for flag in both}) == 1 else []


def _settle(candidates: Sequence[Flag], others: Iterable[Flag]) -> Flag:
    """Which of two flags is meant: torchrun's, if the others on the line are."""
    is_torchrun = is_torchruns(others)
    return next(flag for flag in candidates if (TORCHRUN in flag.of) == is_torchrun)


def _take_value(flag: Flag, words: list[str]) -> str:
    """The value that follows a flag, taken from the words."""
    if flag.is_bare:
        return "yes"
    if flag.is_switch:
        return words.pop(0) if words and is_switch_word(words[0]) else "yes"
    if not words or words[0].startswith("--"):
        follows = f"{words[0]} follows" if words else "nothing follows"
        meaning = f": {flag.help}" if flag.help else ""
        raise UsageError(f"{flag.written} needs a value, but {follows}{meaning}")
    return words.pop(0)


def _unknown(word: str, by_name: Mapping[str, Flag]) -> str:
    """What to say about a flag that does not exist."""
    # Imported here: difflib is needed on the way to an error only.
    from difflib import get_close_matches

    written = word.partition("=")[0]
    name = written.lstrip("-").replace("-", "_")
    begun = [flag.written for flag in by_name.values() if name and flag.name.startswith(name)]
    # A wrong guess is worse than none: what has another meaning may look much alike.
    nearest = get_close_matches(name, list(by_name), n=1, cutoff=0.85)
    hint = f"did you mean --{nearest[0]}?" if nearest else "see `rankrun --help`"
    if len(begun) > 1 and word.startswith("--"):
        hint = f"it may be {', '.join(begun[:-1])} or {begun[-1]}"
    return f"there is no flag {written}: {hint} (flags of the script stand after the script)"
