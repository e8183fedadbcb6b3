"""Taking exceptions apart for the way to the parent, and putting them together there.

pickle alone is not enough: it calls the class with ``args``, which fails for every constructor
that takes something else; one attribute that cannot be pickled loses all; and causes, contexts
and the members of groups are dropped. So each exception is sent as a plain dictionary whose
pickled pieces are tried before they are sent, and stand in for each other where one fails.
"""

from __future__ import annotations

import io
import os
import sys

from rankspawn.workers.pickling import dump, loads, rules_of_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

# Longer chains and deeper groups are cut here; the traceback's text has all of them.
_DEEPEST = 20


class MissingGuardError(RuntimeError):
    """A module starts workers whenever it is imported."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path} calls spawn() while a worker imports it: put the call under "
            'if __name__ == "__main__":'
        )


def summarize(error: BaseException) -> dict[str, Any]:
    """Runs in the worker: what can be said of an exception in strings only."""
    kinds = type.__dict__["__mro__"].__get__(type(error))
    return {"text": text_of(error), "kinds": [_names_of(kind) for kind in kinds]}


def pack(error: BaseException, seen: set[int] | None = None, depth: int = 0) -> dict[str, Any]:
    """Runs in the worker: everything of the exception that survives the way."""
    # Each exception goes once: ``raise from`` sets cause and context to the same one, and
    # following both at every level would double the work with each.
    seen = {id(error)} if seen is None else seen
    packed = summarize(error)
    packed["whole"] = _pickle_if_it_comes_back(error)
    if packed["whole"] is None:
        packed["class"] = _pickle_if_it_comes_back(type(error))
        args = _own(error, "args")
        packed["args"] = [_pickle_if_it_comes_back(arg) or repr_of(arg) for arg in args]
        packed["state"] = {
            name: _pickle_if_it_comes_back(value) or repr_of(value)
            for name, value in _attributes_of(error).items()
        }
    if depth < _DEEPEST:
        packed["suppress_context"] = _own(error, "__suppress_context__")
        for link in ("__cause__", "__context__"):
            other = _own(error, link)
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                packed[link] = pack(other, seen, depth + 1)
        if issubclass(type(error), BaseExceptionGroup):
            packed["message"] = _own(error, "message", BaseExceptionGroup)
            members = _own(error, "exceptions", BaseExceptionGroup)
            packed["members"] = [pack(member, seen, depth + 1) for member in members]
    return packed


def _own(error: BaseException, name: str, kind: type = BaseException) -> Any:
    """An attribute as Python itself has it.

    Its class may have attributes of these names, or a ``__getattribute__``, that raise or hang.
    For the same reason nothing here asks ``isinstance``, which asks the object for its class.
    """
    return kind.__dict__[name].__get__(error)


def _attributes_of(error: BaseException) -> dict[str, Any]:
    return object.__getattribute__(error, "__dict__")  # type: ignore[no-any-return]


def _names_of(kind: type) -> tuple[str, str]:
    """Its module and name; a metaclass may have made something else of them."""
    try:
        return str.__str__(kind.__module__), str.__str__(kind.__qualname__)
    except Exception:
        return "?", type.__dict__["__name__"].__get__(kind)


def unpack(packed: dict[str, Any]) -> BaseException:
    """Runs in the parent: the exception, or the nearest thing to it; never fails."""
    error = _rebuild(packed)
    for link in ("__cause__", "__context__"):
        if packed.get(link) is not None:
            _set(error, link, unpack(packed[link]))
    _set(error, "__suppress_context__", packed.get("suppress_context", False))
    return error


def _rebuild(packed: dict[str, Any]) -> BaseException:
    attempts = (_rebuild_group, _rebuild_whole, _rebuild_from_pieces, _stand_in)
    for attempt in attempts:
        try:
            error = attempt(packed)
        except KeyboardInterrupt:
            raise
        except BaseException:  # code of users' classes ran; the next attempt knows less
            continue
        if issubclass(type(error), BaseException):
            return error
    return Exception(packed["text"])


def _rebuild_whole(packed: dict[str, Any]) -> Any:
    return _loads(packed["whole"])


def _rebuild_from_pieces(packed: dict[str, Any]) -> Any:
    """The same class and attributes, without a call of its constructor."""
    kind = _loads(packed["class"])
    args = tuple(_loads(arg) for arg in packed["args"])
    error = kind.__new__(kind, *args)
    _set(error, "args", args)
    _attributes_of(error).update(_state_of(packed))
    return error


def _rebuild_group(packed: dict[str, Any]) -> Any:
    members = [unpack(member) for member in packed["members"]]
    try:
        group = _loads(packed["whole"] or packed["class"])
        kind: Any = group if isinstance(group, type) else type(group)
        # Not by the class's own __new__, which may want something else.
        rebuilt = BaseExceptionGroup.__new__(kind, packed["message"], members)
        rebuilt.__dict__.update(_state_of(packed) if group is kind else group.__dict__)
    except Exception:  # a subclass with other rules
        return BaseExceptionGroup(packed["message"], members)
    return rebuilt


def _state_of(packed: dict[str, Any]) -> dict[str, Any]:
    return {name: _loads(value) for name, value in packed.get("state", {}).items()}


def _set(error: BaseException, name: str, value: Any) -> None:
    """Also where the class forbids it, as a frozen dataclass does."""
    BaseException.__setattr__(error, name, value)


def _stand_in(packed: dict[str, Any]) -> BaseException:
    """An exception of the same name and text under the nearest base class that allows it."""
    (module, name), *bases = packed["kinds"]
    text = packed["text"]
    body = {"__module__": module, "__str__": lambda _: text}
    for base_module, base_name in bases:
        base: Any = getattr(sys.modules.get(base_module), base_name, None)
        try:
            kind: Any = type(name.rpartition(".")[2], (base,), dict(body))
            error: BaseException = kind.__new__(kind, text)
            _set(error, "args", (text,))
        except Exception:  # unknown here, or a class with other rules
            continue
        return error
    raise ValueError("no base class will do")


def _pickle_if_it_comes_back(obj: Any) -> bytes | None:
    """The pickle, if unpickling it here gives the same type again."""
    stream = io.BytesIO()
    try:
        # Buffers left out of the stream would be lost, so large ones count as failures.
        if dump(obj, stream, rules_of_worker()):
            return None
        back = _loads(stream.getvalue())
    except KeyboardInterrupt:
        raise
    except BaseException:  # anything may be wrong with a user's object
        return None
    return stream.getvalue() if type(back) is type(obj) else None


def _loads(piece: bytes | str | None) -> Any:
    """A piece that was pickled, or the text that stands for one that could not be."""
    if isinstance(piece, str):
        return piece
    if piece is None:
        raise ValueError("this piece did not survive")
    return loads(piece)


def note_reason(error: BaseException) -> None:
    """Runs in the worker: add what the exception leaves out of its reason.

    That is the limit behind "File too large", unless we said it, and that a debugger, which was
    called by its name, had nobody to talk to.
    """
    debugger = sys.modules.get("bdb")
    if debugger is not None and issubclass(type(error), debugger.BdbQuit):
        from rankspawn.workers.breakpoints import explain, reads_terminal

        if not reads_terminal():
            BaseException.add_note(error, f"({explain()})")
    if issubclass(type(error), OSError):
        from rankspawn.file_limit import describe_limit, is_too_large

        if is_too_large(error) and not str(_own(error, "args")).count("RLIMIT_FSIZE"):
            BaseException.add_note(error, f"({describe_limit()})")


def describe(error: BaseException) -> str:
    """Runs in the worker: the traceback as text, from the user's first frame on."""
    if issubclass(type(error), MissingGuardError):
        return f"RuntimeError: {error}\n"
    try:
        import re  # traceback has it anyway
        import traceback

        lines = traceback.format_exception(type(error), error, without_our_frames(error))
        # A script's own exceptions under the names that its author knows, also within a group.
        return re.sub(r"^([ |]*)__mp_main__\.", r"\1", "".join(lines), flags=re.MULTILINE)
    except BaseException as second:  # its class's own code, or out of memory or stack
        return describe_without_text(error, f"could not be formatted: {repr_of(second)}")


def describe_without_text(error: BaseException, reason: str) -> str:
    """The same without any code of its class: where it was raised, and what it is called."""
    name = type.__dict__["__name__"].__get__(type(error))
    try:
        import traceback

        frames = "".join(traceback.format_tb(without_our_frames(error)))
    except BaseException:  # out of memory
        return f"{name} (its traceback {reason})\n"
    return f"Traceback (most recent call last):\n{frames}{name} (its text {reason})\n"


def without_our_frames(error: BaseException) -> TracebackType | None:
    """Its traceback without this package at the top; the last frame stays if there is no other."""
    ours = os.path.dirname(os.path.dirname(__file__)) + os.sep
    frames: TracebackType | None = _own(error, "__traceback__")
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(ours):
        if frames.tb_next is None:
            break
        frames = frames.tb_next
    return frames


def text_of(obj: object) -> str:
    """``str`` that cannot fail, and returns no subclass of str."""
    try:
        return str.__str__(str(obj))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(obj).__name__} whose str() fails>"


def repr_of(obj: object) -> str:
    """``repr`` that cannot fail, and returns no subclass of str."""
    try:
        return str.__str__(repr(obj))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(obj).__name__} whose repr() fails>"


def with_lines_of_cells(traceback: str) -> str:
    """The same traceback with the code of frames that lack it, where it is known here.

    A worker cannot read a notebook's cell or what was typed into a REPL, but whoever runs those
    keeps them in linecache for Python's own tracebacks.
    """
    import linecache  # on the way to an error only
    import re

    def with_line(frame: re.Match[str]) -> str:
        line = linecache.getline(frame[1], int(frame[2])).strip()
        return f"{frame[0]}    {line}\n" if line else frame[0]

    # A frame that is not followed by its line of code.
    bare_frame = r'^  File "(.+)", line (\d+), in .+\n(?!    )'
    return re.sub(bare_frame, with_line, traceback, flags=re.MULTILINE)
