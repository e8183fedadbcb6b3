"""One flag of ``rankrun``, and how its value is read. Pure."""

from __future__ import annotations

from rankspawn.launch import flag_values as read

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

PADDLE, TORCHRUN = "paddle", "torchrun"
BOTH = (PADDLE, TORCHRUN)
OURS: tuple[str, ...] = ()


class Flag:
    """A flag of the command line, and how its value is read.

    Attributes:
        name: With underscores, without dashes.
        read: From its origin (for messages) and its text to its value.
        help: What it is for; with its default, if that is not plain.
        sets: The field that it fills; several flags may fill the same.
        deprecated: What to write instead.
        is_switch: It may stand without a value, and then means yes.
        is_bare: It never has a value, as torchrun's switches.
        of: The launchers that have it; nobody else, if it is ours alone.
        letter: Its short form, without the dash.
        begins: A word of torchrun's that begins with this one, which torchrun takes it for.
        instead: What is done in its place; then it has no effect, and this is said.
        repeats: It may be given several times; its text has them all, one a line.
    """

    # No dataclass: what makes one takes longer than the whole table.
    __slots__ = (
        *("name", "read", "help", "sets", "other_variable", "deprecated", "is_switch"),
        *("is_bare", "of", "letter", "begins", "instead", "repeats"),
    )

    def __init__(
        self,
        name: str,
        read: Callable[[str, str], object],
        help_: str,
        sets: str = "",
        *,
        other_variable: str = "",
        deprecated: str = "",
        is_switch: bool = False,
        is_bare: bool = False,
        of: tuple[str, ...] = (PADDLE,),
        letter: str = "",
        begins: str = "",
        instead: str = "",
        repeats: bool = False,
    ) -> None:
        self.name: str = name
        self.read: Callable[[str, str], object] = read
        self.help: str = help_
        self.sets: str = sets
        self.other_variable: str = other_variable
        self.deprecated: str = deprecated
        self.is_switch: bool = is_switch
        self.is_bare: bool = is_bare
        self.of: tuple[str, ...] = of
        self.letter: str = letter
        self.begins: str = begins
        self.instead: str = instead
        self.repeats: bool = repeats

    @property
    def field(self) -> str:
        """The field of the configuration that it fills."""
        return self.sets or self.name

    @property
    def variable(self) -> str:
        """The variable that is read where the flag is absent."""
        if self.of == (TORCHRUN,):
            return self.torchruns_variable
        return self.other_variable or f"PADDLE_{self.name.upper()}"

    @property
    def torchruns_variable(self) -> str:
        """The variable that torchrun reads where the flag is absent."""
        return f"PET_{self.name.upper()}"

    @property
    def written(self) -> str:
        """The flag as it is written on the command line."""
        return f"--{self.name}"


def torchruns(
    name: str,
    reader: Callable[[str, str], object],
    help_: str,
    letter: str = "",
    *,
    sets: str = "",
    instead: str = "",
) -> Flag:
    """A word that torchrun alone has; its switches never have a value."""
    bare = reader is read.switch
    return Flag(
        name, reader, help_, sets, is_bare=bare, of=(TORCHRUN,), letter=letter, instead=instead
    )
