"""How long it takes to start and join workers that do nothing, side by side.

Each contender runs as a script of its own in a fresh interpreter: it starts one worker
untimed, so that what is loaded once per program does not count, then n workers with the
stopwatch on. The contenders take turns within each round, so that all of them feel the same
load; the table shows medians and ratios.

    python benchmarks/startup.py
    python benchmarks/startup.py --torch-python PATH --paddle-python PATH --rounds 5
"""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

DEADLOCK_SECONDS = 300
SOURCE = Path(__file__).resolve().parent.parent / "src"

TEMPLATE = """\
import sys
{imports}


def do_nothing(*args):
    pass


def start(nprocs):
{start}


if __name__ == "__main__":
    from time import perf_counter

    start(1)
    before = perf_counter()
    start(int(sys.argv[1]))
    print("seconds", perf_counter() - before)
"""
MULTIPROCESSING = """\
    processes = [mp.Process(target=do_nothing) for _ in range(nprocs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""


@dataclass(frozen=True)
class Contender:
    """One way to start workers, as a script for one interpreter."""

    name: str
    python: str
    imports: str
    start: str

    def measure(self, nprocs: int, folder: Path) -> float:
        """Seconds from the call to the end of all workers."""
        script = folder / f"{self.name.replace(' ', '_')}.py"
        script.write_text(TEMPLATE.format(imports=self.imports, start=self.start))
        done = subprocess.run(
            [self.python, str(script), str(nprocs)],
            capture_output=True,
            text=True,
            timeout=DEADLOCK_SECONDS,
            check=False,
        )
        for line in done.stdout.splitlines():
            word, _, seconds = line.partition(" ")
            if word == "seconds":
                return float(seconds)
        raise RuntimeError(f"{self.name} failed:\n{done.stderr}")


def contenders(torch_python: str | None, paddle_python: str | None) -> list[Contender]:
    """All that can run here; rankspawn is the first."""
    ours = f"sys.path.insert(0, {str(SOURCE)!r})\nimport rankspawn"
    found = [
        Contender(
            f"rankspawn {method}",
            sys.executable,
            ours,
            "    rankspawn.spawn(do_nothing, nprocs=nprocs, backend='gloo', "
            f"start_method={method!r})",
        )
        for method in ("spawn", "forkserver", "fork")
    ]
    found += [
        Contender(
            f"multiprocessing {method}",
            sys.executable,
            f"import multiprocessing\n\nmp = multiprocessing.get_context({method!r})",
            MULTIPROCESSING,
        )
        for method in ("spawn", "forkserver", "fork")
    ]
    if can_import(torch_python, "torch"):
        start = "    torch.multiprocessing.spawn(do_nothing, nprocs=nprocs)"
        found.append(Contender("torch spawn", torch_python, "import torch", start))
    if can_import(paddle_python, "paddle"):
        start = "    dist.spawn(do_nothing, nprocs=nprocs, backend='gloo')"
        imports = "import paddle.distributed as dist"
        found.append(Contender("paddle spawn", paddle_python, imports, start))
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
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with torch")
    parser.add_argument("--paddle-python", default=sys.executable, help="interpreter with Paddle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nprocs", type=int, nargs="+", default=[2, 8])
    options = parser.parse_args()

    runners = contenders(options.torch_python, options.paddle_python)
    with tempfile.TemporaryDirectory() as folder:
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(options.rounds):
            for nprocs in options.nprocs:
                for one in runners:
                    seconds = one.measure(nprocs, Path(folder))
                    times.setdefault((one.name, nprocs), []).append(seconds)

    print(f"CPython {platform.python_version()}, medians of {options.rounds} rounds")
    print("no-op workers".ljust(26) + "".join(f"n={n}".rjust(30) for n in options.nprocs))
    for one in runners:
        cells = []
        for nprocs in options.nprocs:
            taken = times[one.name, nprocs]
            ratio = statistics.median(taken) / statistics.median(times[runners[0].name, nprocs])
            spread = f"({min(taken) * 1000:.0f}-{max(taken) * 1000:.0f})"
            cells.append(
                f"{statistics.median(taken) * 1000:.0f} ms {spread} {ratio:.2f}x".rjust(30)
            )
        print(one.name.ljust(26) + "".join(cells))


if __name__ == "__main__":
    main()
