"""Files of variables: ``NAME=VALUE``, one a line, as shells and containers have them."""

from __future__ import annotations

from rankspawn.launch.flags import UsageError
from rankspawn.values import replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.launch.config import LaunchConfig


def with_env_file(config: LaunchConfig) -> LaunchConfig:
    """The configuration with the variables of its file; those of the command line win.

    Raises:
        UsageError: The file cannot be read, or a line of it is no variable.
    """
    assert config.env_file is not None, "the caller has looked"
    try:
        with open(config.env_file, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--env_file {config.env_file} cannot be read: {reason}") from error
    return replace(config, env=(*parse(text, config.env_file), *config.env))


def parse(text: str, name: str) -> tuple[tuple[str, str], ...]:
    """The variables in such a file, in its order.

    Comments, empty lines, ``export`` and quotes around a value are what they are for a shell;
    nothing is expanded.

    Raises:
        UsageError: A line is none of these; its value is not told.
    """
    found = []
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole.strip().removeprefix("export ").lstrip()
        if not line or line.startswith("#"):
            continue
        variable, equals, value = line.partition("=")
        variable, value = variable.rstrip(), value.strip()
        if not equals or not variable.isidentifier():
            raise UsageError(f"--env_file {name}, line {number}: no NAME=VALUE")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found.append((variable, value))
    return tuple(found)
