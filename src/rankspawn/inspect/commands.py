"""The commands that look at running jobs: from parsed arguments to an exit code."""

from __future__ import annotations

import json
import sys
import time

from rankspawn.inspect.finding import NoJobError, choose, find_jobs
from rankspawn.portable import has_proc

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import argparse

# Long enough for a percentage of CPU that means something.
_MEASURED_SECONDS = 0.2
_INTERRUPTED = 130


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; 1 if there is nothing to do it with."""
    if not has_proc():
        _complain("this system has no /proc, in which running jobs are found")
        return 1
    commands = {"ps": _ps, "top": _top, "stacks": _stacks, "logs": _logs, "stop": _stop}
    try:
        return commands[arguments.command](arguments)
    except NoJobError as error:
        _complain(str(error))
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _ps(arguments: argparse.Namespace) -> int:
    from rankspawn.inspect.tables import describe_jobs, jobs_as_data
    from rankspawn.inspect.usage import TreeMeter

    jobs = find_jobs()
    pids = [rank.pid for job in jobs for rank in job.ranks if rank.is_alive]
    meter = TreeMeter()
    if pids:
        meter.look(pids)
        time.sleep(_MEASURED_SECONDS)
    usage = meter.look(pids)
    if arguments.json:
        _say(json.dumps(jobs_as_data(jobs, usage), indent=2))
    else:
        _say(describe_jobs(jobs, usage) or "no job of yours runs on this machine")
    return 0


def _top(arguments: argparse.Namespace) -> int:
    from rankspawn.inspect.showing import show_top

    show_top(choose(find_jobs(), arguments.job), arguments.interval)
    return 0


def _stacks(arguments: argparse.Namespace) -> int:
    from rankspawn.inspect.asking import stacks_of
    from rankspawn.supervise.failures import describe_stacks

    job = choose(find_jobs(), arguments.job)
    _say(describe_stacks(stacks_of(job, job.chosen(arguments.rank))))
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    from rankspawn.inspect.showing import show_logs

    job = choose(find_jobs(), arguments.job)
    ranks = job.chosen(arguments.rank)
    if not any(rank.log or rank.will_print for rank in ranks):
        raise NoJobError(
            f"job {job.id} keeps no logs: its ranks print to where process {job.parent} does. "
            "With spawn(..., log_dir=...) or tee=True each has a file"
        )
    show_logs(job, arguments.rank, follow=arguments.follow)
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    from rankspawn.inspect.ending import stop_job

    is_gone, told = stop_job(choose(find_jobs(), arguments.job), arguments.grace)
    _say(told)
    return int(not is_gone)


def _say(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    # A terminal that does not know a character gets a question mark, no traceback.
    print(text.encode(encoding, "replace").decode(encoding), flush=True)  # noqa: T201


def _complain(text: str) -> None:
    print(f"rankspawn: {text}", file=sys.stderr)  # noqa: T201 - what people see of an error
