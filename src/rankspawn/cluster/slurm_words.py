"""What Slurm says, and what it means for whoever called spawn. Pure."""

from __future__ import annotations

import re

_ADVICE = {
    "TIME LIMIT": "the time of the Slurm job is over: ask for more with time=",
    "PREEMPTION": "Slurm gave the nodes to a job of higher priority",
    "CANCELLED": "the Slurm job or its step was cancelled",
    "NODE FAILURE": "Slurm lost the node",
}
_BESIDE_THE_POINT = re.compile(r"lacks support for cpu binding|Job step aborted: Waiting up to")


def explain(host: str, code: int | None, said: str) -> str:
    """Why there is no agent on this node any more, and Slurm's own last words."""
    lines = [line for line in said.splitlines() if not _BESIDE_THE_POINT.search(line)]
    said, upper = "\n".join(lines), said.upper()
    advice = next((words for sign, words in _ADVICE.items() if sign in upper), "")
    if not advice and ("No module named" in said and "rankspawn" in said):
        advice = f"the Python on {host} has no rankspawn: name another one with python="
    if not advice and not said and code:
        advice = f"srun ended with code {code}"
    return "; Slurm said: ".join(filter(None, (advice, said)))
