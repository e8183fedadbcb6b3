"""What a script is: Python's, or a program that is executed by itself.

``.py`` is Python's. Else a file that can be executed is, unless the command line is torchrun's,
which runs everything by Python; and what cannot be executed may still be Python's.
"""

from __future__ import annotations

import os

from rankspawn.values import replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.launch.config import LaunchConfig

_ZIP, _SHEBANG = b"PK\x03\x04", b"#!"


def settle_runner(config: LaunchConfig) -> LaunchConfig:
    """The configuration, with how its script is run where the name alone does not say."""
    script = config.script
    if config.is_module or config.runner or config.ipu or script.endswith(".py"):
        return config
    if os.path.isdir(script):
        return replace(config, runner="python")
    by_torchrun = config.streams is not None
    if os.path.isfile(script) and (by_torchrun or not _is_executable(script)):
        return replace(config, runner="python") if _is_python(script) else config
    return config


def _is_executable(script: str) -> bool:
    """Whether it can be executed, or a program of that name that is found first."""
    if os.sep in script:
        return os.access(script, os.X_OK)
    from shutil import which

    return which(script) is not None


def _is_python(script: str) -> bool:
    """Whether Python can run a file: a script or an archive; not a shell's, nor a binary."""
    import warnings

    try:
        with open(script, "rb") as file:
            text = file.read()
    except OSError:
        return False
    first, _, _ = text.partition(b"\n")
    if text.startswith(_ZIP) or first.startswith(_SHEBANG):
        return text.startswith(_ZIP) or b"python" in first
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the worker's own matter
            compile(text, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
