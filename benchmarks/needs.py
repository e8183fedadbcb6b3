"""What a trial needs besides Python, so that what is missing can be named. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.records import Trial

# The last commit before the imports of a first spawn were looked at: "a third less than today" is
# held against it.
BEFORE = "2d7c0f4"
_OF_CONTENDERS = {
    "torch": ("torch",),
    "torchrun": ("torch",),
    "Paddle": ("paddle",),
    "JAX": ("jax",),
    "MPI": ("mpi4py", "program mpirun"),
    "loky": ("loky",),
    "torchrunx": ("torchrunx", "torch", "program sshd", "program ssh"),
    "ssh": ("program sshd", "program ssh"),
    "Slurm": ("program slurmctld", "program slurmd", "program munged", "program srun"),
    "Ray": ("ray",),
    "before": (f"commit {BEFORE}",),
}
_OF_SCRIPTS = {
    "torch_ranks": ("torch",),
    "tests_with_ranks": ("pytest",),
    "collectives": ("numpy",),
    "training_step": ("numpy", "torch"),
}
_OF_KINDS = {
    "NumPy": ("numpy",),
    "torch": ("numpy", "torch"),
    "torch, pandas": ("torch", "pandas"),
    "pandas": ("numpy", "pandas"),
    "Arrow": ("numpy", "pyarrow"),
    "bytes": ("numpy",),
    "bytearray": ("numpy",),
}
_WHOLE = {"Ray Train": ("ray", "torch"), "torch MultiProcessTestCase": ("torch", "expecttest")}


def needs(trial: Trial) -> set[str]:
    """Modules by their names, programs and commits with a word before it."""
    family = trial.contender.partition(" ")[0]
    words = _WHOLE.get(trial.contender, _OF_CONTENDERS.get(family, ()))
    if trial.script == "start" and trial.contender == "torchrunx":
        words = ("torchrunx", "torch")
    return {*words, *_OF_SCRIPTS.get(trial.script, ()), *_OF_KINDS.get(trial.kind, ())}


def missing(trials: Iterable[Trial], has: Callable[[str], bool]) -> dict[str, list[Trial]]:
    """By what is not there, the trials that cannot run without it."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        for need in sorted(needs(trial)):
            if not has(need):
                found.setdefault(need, []).append(trial)
    return found
