"""How long a launcher takes for a script that only says hello, with two workers, side by side.

Each contender is a command, timed from outside, from its start to its end: ``rankrun``, torch's
and Paddle's launchers, and two bare interpreters at the same time, which is what no launcher can
be faster than. They take turns within each round, so that all of them feel the same load; the
table shows medians and ratios. All run compiled modules: the first round does not count.

    python benchmarks/launch_startup.py
    python benchmarks/launch_startup.py --torch-python PATH --paddle-python PATH --rounds 11
"""

import argparse
import compileall
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

DEADLOCK_SECONDS = 300
SOURCE = Path(__file__).resolve().parent.parent / "src"
WORKERS = 2
# At least so many times faster than the other launchers; at most so many seconds over bare.
WANTED_RATIO = 8.0
WANTED_SECONDS = 0.15


@dataclass(frozen=True)
class Contender:
    """One way to run the script in two processes."""

    name: str
    command: list[str]
    copies: int = 1

    def measure(self, folder: Path, environ: dict[str, str]) -> float:
        """Seconds from its start to its end."""
        before = time.perf_counter()
        running = [
            subprocess.Popen(
                self.command,
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(self.copies)
        ]
        codes = [process.wait(DEADLOCK_SECONDS) for process in running]
        taken = time.perf_counter() - before
        if any(codes):
            raise RuntimeError(f"{self.name} failed: {' '.join(self.command)}")
        return taken


def contenders(python: str, torch_python: str | None, paddle_python: str | None) -> list[Contender]:
    """All that can run here; rankrun is the first, bare interpreters the second."""
    count = str(WORKERS)
    found = [
        Contender(
            "rankrun", [python, "-m", "rankspawn.launch", "--nproc_per_node", count, "hello.py"]
        ),
        Contender("bare python", [python, "hello.py"], copies=WORKERS),
    ]
    if can_import(torch_python, "torch"):
        command = [torch_python, "-m", "torch.distributed.run", "--nproc-per-node", count]
        found.append(Contender("torchrun", [*command, "--standalone", "hello.py"]))
    if can_import(paddle_python, "paddle"):
        command = [paddle_python, "-m", "paddle.distributed.launch", "--nproc_per_node", count]
        found.append(Contender("paddle.distributed.launch", [*command, "hello.py"]))
    return found


def can_import(python: str | None, module: str) -> bool:
    """Whether this interpreter has the module."""
    if python is None:
        return False
    code = f"import importlib.util as u; raise SystemExit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter for rankrun")
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with torch")
    parser.add_argument("--paddle-python", default=sys.executable, help="interpreter with Paddle")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    runners = contenders(options.python, options.torch_python, options.paddle_python)
    times: dict[str, list[float]] = {runner.name: [] for runner in runners}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hello.py").write_text('print("hello")\n')
        # Compiled, as an installed package is; the clone may be one that must not be written to.
        shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        environ = {**os.environ, "PYTHONPATH": str(folder / "src")}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        compileall.compile_dir(folder / "src", quiet=1)
        for number in range(options.rounds + 1):
            for runner in runners:
                taken = runner.measure(folder, environ)
                if number:
                    times[runner.name].append(taken)

    ours, bare = (statistics.median(times[runner.name]) for runner in runners[:2])
    print(f"CPython {platform.python_version()}, medians of {options.rounds} rounds")
    for runner in runners:
        taken = times[runner.name]
        median = statistics.median(taken)
        spread = f"({min(taken) * 1000:.0f}-{max(taken) * 1000:.0f})"
        line = f"{runner.name:26}{median * 1000:7.0f} ms {spread:>14} {median / ours:7.2f}x"
        if runner.name not in ("rankrun", "bare python"):
            line += f"   wanted: at least {WANTED_RATIO:g}x"
        print(line)
    print(
        f"over bare: {(ours - bare) * 1000:.0f} ms   wanted: at most {WANTED_SECONDS * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
