"""Another engine's ranks under the context that local processes have, unchanged."""

from __future__ import annotations

import _thread
import ast
import asyncio
import contextlib
import gc
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest

import rankspawn
from rankspawn import (
    MultiprocessContext,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnTimeoutError,
    handlers,
)
from rankspawn.supervise.outcome import End
from rankspawn.supervise.supervisor import SupervisionPolicy
from rankspawn.view.request import ShowRequest
from rankspawn.view.sources import Place
from rankspawn.view.viewer import View
from tests.jobs import DEADLOCK
from tests.supervise.scripted_group import FIRST_PID, ScriptedEngine, ScriptedGroup, ScriptedReport

SUPERVISE = Path(rankspawn.__file__).parent / "supervise"


def all_return(group: ScriptedGroup) -> None:
    for index in reversed(range(len(group.processes))):
        group.returns(index, index * 10)


def when_waited_for(act: Callable[[ScriptedGroup], None]) -> Callable[[ScriptedGroup], None]:
    """A script that begins once somebody blocks on the group."""

    def script(group: ScriptedGroup) -> None:
        assert group.is_waited_for.wait(DEADLOCK)
        act(group)

    return script


class TestTheSeam:
    def test_nothing_of_local_processes_is_imported(self) -> None:
        modules = [f"rankspawn.supervise.{path.stem}" for path in SUPERVISE.glob("*.py")]
        code = (
            f"import sys, {', '.join(modules)}\n"
            "print([name for name in sys.modules if name.startswith('rankspawn.workers')])"
        ).replace(".__init__", "")
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=DEADLOCK,
            check=False,
        )

        assert (done.stdout, done.stderr) == ("[]\n", "")

    @pytest.mark.parametrize("path", sorted(SUPERVISE.glob("*.py")), ids=lambda path: path.stem)
    def test_nor_mentioned_in_functions_and_types(self, path: Path) -> None:
        imported = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.append(node.module or "")
            elif isinstance(node, ast.Import):
                imported += [alias.name for alias in node.names]

        assert not [name for name in imported if name.startswith("rankspawn.workers")]

    def test_the_view_knows_no_local_group(self) -> None:
        code = "".join(path.read_text() for path in (SUPERVISE.parent / "view").glob("*.py"))

        for module in ("group", "worker", "outcome", "report", "popen"):
            assert f"rankspawn.workers.{module} " not in code


class TestResults:
    def test_by_rank(self) -> None:
        with ScriptedEngine(all_return, count=3, first_rank=4).context() as context:
            assert context.results() == [0, 10, 20]
            assert context.join() is True
            assert [process.rank for process in context.processes] == [4, 5, 6]
            assert context.pids() == [FIRST_PID, FIRST_PID + 1, FIRST_PID + 2]
            assert context.exitcodes() == [0, 0, 0]

    def test_those_that_come_while_somebody_waits(self) -> None:
        with ScriptedEngine(when_waited_for(all_return)).context() as context:
            assert context.results() == [0, 10]

    def test_several_threads_wait(self) -> None:
        answers: list[bool] = []
        with ScriptedEngine(when_waited_for(all_return)).context() as context:
            threads = [
                threading.Thread(target=lambda: answers.append(context.join())) for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLOCK)

        assert answers == [True] * 3

    def test_a_time_to_wait_that_is_over(self) -> None:
        engine = ScriptedEngine()
        with engine.context() as context:
            assert context.join(timeout=0) is False
            assert context.join(timeout=0.001) is False
            assert context.exitcodes() == [None, None]
            all_return(engine.groups[0])
            assert context.join(timeout=0) is True

    def test_return_queues(self) -> None:
        engine = ScriptedEngine(when_waited_for(lambda group: group.returns(1, "early")))
        with engine.context() as context:
            assert context.return_queues[1].get(timeout=DEADLOCK) == "early"
            with pytest.raises(queue.Empty):
                context.return_queues[1].get_nowait()
            assert context.return_queues[0].empty()
            with pytest.raises(queue.Empty):
                context.return_queues[0].get(timeout=0)
            engine.groups[0].returns(0, "late")
            assert context.return_queues[0].qsize() == 1
            assert context.return_queues[0].get() == "late"
            assert context.error_queues[0].empty()

    def test_one_that_cannot_be_read_names_its_rank(self) -> None:
        class Broken(ScriptedReport):
            def result(self) -> object:
                raise ValueError("not a pickle")

        engine = ScriptedEngine(count=1, first_rank=7)
        with engine.context() as context:
            engine.groups[0].ends(0, End.RETURNED, 0, Broken())
            with pytest.raises(ValueError, match="not a pickle") as caught:
                context.results()

        assert caught.value.__notes__ == ["The result of rank 7 was being read."]


class TestFailures:
    def test_the_first_in_time_is_raised_and_knows_the_others(self) -> None:
        def fail(group: ScriptedGroup) -> None:
            group.ends(3, End.DIED, -signal.SIGKILL, when_ns=300)
            group.raises(2, ValueError("first"), when_ns=100)
            group.ends(0, End.EXITED, 3, ScriptedReport("no data"), when_ns=200)

        engine = ScriptedEngine(count=5)
        with engine.context() as context:
            fail(engine.groups[0])
            with pytest.raises(ProcessRaisedException) as caught:
                context.join()
            with pytest.raises(ProcessRaisedException) as again:
                context.join()

        error = caught.value
        assert again.value is error
        assert (error.rank, error.pid, str(error.exception)) == (2, FIRST_PID + 2, "first")
        assert error.traceback == "ValueError: first\n"
        assert [failure.rank for failure in error.failures] == [2, 0, 3]
        assert str(error.failures[1]) == "Process 0 terminated with exit code 3: no data"
        assert context.exitcodes() == [3, -15, 1, -9, -15]  # two victims
        assert engine.groups[0].stops == [(DEADLOCK, False)]

    def test_a_failure_ends_a_wait_for_another_rank(self) -> None:
        fail = when_waited_for(lambda group: group.raises(0, ValueError("on purpose")))
        with ScriptedEngine(fail).context() as context:
            with pytest.raises(ProcessRaisedException, match="on purpose"):
                context.return_queues[1].get()
            assert context.error_queues[0].get() == "ValueError: on purpose\n"
            assert context.error_queues[1].empty()
            with pytest.raises(queue.Empty):
                context.error_queues[1].get()

    def test_victims_of_a_stop(self) -> None:
        engine = ScriptedEngine(lambda group: group.returns(0, "done"), count=3)
        with engine.context() as context:
            assert context.return_queues[0].get() == "done"
            context.terminate()
            with pytest.raises(ProcessExitedException, match="it was stopped because") as caught:
                context.join()

        assert [failure.rank for failure in caught.value.failures] == [1, 2]
        assert caught.value.signal_name == "SIGTERM"

    def test_time_that_is_over(self) -> None:
        engine = ScriptedEngine(lambda group: group.returns(1), count=4)
        policy = SupervisionPolicy(DEADLOCK, timeout=0.001)
        with engine.context(policy) as context, pytest.raises(SpawnTimeoutError) as caught:
            context.join()

        assert set(caught.value.stacks) >= {0, 2, 3}
        assert 'File "train.py", line 3 in step' in str(caught.value)
        assert "did not end within 0.001 s and were stopped" in str(caught.value)
        assert engine.groups[0].closed

    def test_what_had_returned_before_the_time_was_over(self) -> None:
        engine = ScriptedEngine(count=3, first_rank=4)
        with engine.context(SupervisionPolicy(DEADLOCK, timeout=DEADLOCK)) as context:
            engine.groups[0].returns(1)
            assert context.return_queues[1].get() is None
            context._supervisor.deadline = 0.0
            with pytest.raises(SpawnTimeoutError, match="rank 5 had returned before") as caught:
                context.join()

        assert set(caught.value.stacks) == {4, 6}

    def test_stacks_on_request(self) -> None:
        with ScriptedEngine(lambda group: group.returns(0)).context() as context:
            context.return_queues[0].get()
            assert context.dump_stacks() == {1: '  File "train.py", line 1 in step\n'}


class TestRestarts:
    def test_until_a_success(self) -> None:
        engine = ScriptedEngine(
            lambda group: group.raises(0, ValueError("once")), when_waited_for(all_return)
        )
        with engine.context(SupervisionPolicy(DEADLOCK, max_restarts=3)) as context:
            before = context.processes
            assert context.results() == [0, 10]
            assert context.processes[0] is not before[0]
            assert [process.exitcode for process in before] == [1, -15]

        assert [group.closed for group in engine.groups] == [True, True]

    def test_until_no_more_are_allowed(self) -> None:
        def fail(group: ScriptedGroup) -> None:
            group.raises(1, ValueError("again"))

        with (
            ScriptedEngine(fail, fail).context(
                SupervisionPolicy(DEADLOCK, max_restarts=1)
            ) as context,
            pytest.raises(ProcessRaisedException, match="again") as caught,
        ):
            context.join()

        assert "started 2 times" in caught.value.__notes__[0]

    def test_none_before_any_rank_reached_the_function(self) -> None:
        def fail(group: ScriptedGroup) -> None:
            for index in range(2):
                group.ends(index, End.DIED, 1, reached_function=False)

        engine = ScriptedEngine(fail)
        policy = SupervisionPolicy(DEADLOCK, max_restarts=1)
        with engine.context(policy) as context, pytest.raises(ProcessExitedException):
            context.join()

        assert len(engine.groups) == 1


class TestEnding:
    def test_leaving_the_block(self) -> None:
        engine = ScriptedEngine()
        with engine.context() as context, context:
            assert context.exitcodes() == [None, None]
        assert context.exitcodes() == [-15, -15]
        assert engine.groups[0].closed

    def test_who_does_not_end_is_killed(self) -> None:
        engine = ScriptedEngine(stubborn=(1,))
        with engine.context() as context:
            context.terminate(grace_period=0)
            assert context.exitcodes() == [-15, -9]

    def test_ctrl_c_while_somebody_waits(self) -> None:
        def interrupt(group: ScriptedGroup) -> None:
            with group.changed:  # the wait has begun, as it has let go of this
                os.kill(os.getpid(), signal.SIGINT)
                group.changed.notify_all()

        engine = ScriptedEngine(when_waited_for(interrupt))
        with engine.context() as context:
            with pytest.raises(KeyboardInterrupt):
                context.join()
            assert engine.groups[0].stops == [(DEADLOCK, True)]
            with pytest.raises(ProcessExitedException, match="it was stopped because"):
                context.join()

    def test_a_dropped_context_stops_nobody(self) -> None:
        engine = ScriptedEngine()
        with engine.context() as context:
            group = engine.groups[0]
            assert group.owner is not None
            assert group.owner() is context._supervisor
        del context
        gc.collect()
        assert group.owner() is None


@pytest.fixture
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_new_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start_new_thread)


class TestAwait:
    def test_while_the_loop_runs_on(self) -> None:
        engine = ScriptedEngine()

        async def main(context: MultiprocessContext) -> bool:
            waiting = asyncio.ensure_future(_join(context))
            await asyncio.sleep(0)  # it has begun
            for index in range(2):
                group = engine.groups[0]
                await asyncio.get_running_loop().run_in_executor(None, group.returns, index)
            return await waiting

        with engine.context() as context:
            assert asyncio.run(main(context)) is True

    def test_what_another_thread_noted(self) -> None:
        with ScriptedEngine(when_waited_for(all_return)).context() as context:
            thread = threading.Thread(target=context.join)

            async def main() -> bool:
                waiting = asyncio.ensure_future(_join(context))
                await asyncio.sleep(0)
                thread.start()
                return await waiting

            assert asyncio.run(main()) is True
            thread.join(DEADLOCK)

    def test_while_the_executor_of_the_loop_has_no_thread_left(self) -> None:
        engine, free = ScriptedEngine(all_return), threading.Event()

        async def main(context: MultiprocessContext) -> bool:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(1))
            busy = loop.run_in_executor(None, free.wait)
            # The bound is for a wait that does not end: then the test fails, and frees the thread.
            loop.call_later(DEADLOCK, free.set)
            answer = await context
            assert not free.is_set()
            free.set()
            await busy
            return answer

        with engine.context() as context:
            assert asyncio.run(main(context)) is True

    @pytest.mark.usefixtures("no_more_threads")
    def test_where_no_thread_can_be_started(self) -> None:
        with ScriptedEngine(all_return).context() as context:
            assert asyncio.run(_join(context)) is True

    def test_a_failure(self) -> None:
        engine = ScriptedEngine(lambda group: group.raises(0, ValueError("on purpose")))
        with engine.context() as context, pytest.raises(ProcessRaisedException, match="purpose"):
            asyncio.run(_join(context))

    def test_time_that_is_over(self) -> None:
        policy = SupervisionPolicy(DEADLOCK, timeout=0.001)
        with ScriptedEngine().context(policy) as context, pytest.raises(SpawnTimeoutError):
            asyncio.run(_join(context))

    def test_cancelling_it_stops_the_ranks_and_cancelling_again_kills_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(handlers, "_ECHO", 0.0)
        engine = ScriptedEngine(stubborn=(0,))

        async def main(context: MultiprocessContext) -> None:
            group = engine.groups[0]
            waiting = asyncio.ensure_future(_join(context))
            await asyncio.sleep(0)
            waiting.cancel()
            stopping = asyncio.get_running_loop().run_in_executor(
                None, group.is_being_stopped.wait, DEADLOCK
            )
            assert await stopping
            assert not waiting.done()
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting

        with engine.context() as context:
            asyncio.run(main(context))
            assert context.exitcodes() == [-9, -15]
            assert engine.groups[0].kills == 1

    def test_a_cancellation_that_is_repeated_at_every_turn_of_the_loop_is_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As anyio cancels: until the task has ended."""
        monkeypatch.setattr(handlers, "_ECHO", 1000.0)
        engine = ScriptedEngine(stubborn=(0,))

        async def main(context: MultiprocessContext) -> None:
            group = engine.groups[0]
            waiting = asyncio.ensure_future(_join(context))
            await asyncio.sleep(0)
            turns = 0
            while not waiting.done():
                waiting.cancel()
                await asyncio.sleep(0)
                turns += group.is_being_stopped.is_set()
                if turns == 100:
                    group.ends(0, End.STOPPED, 0)
            assert waiting.cancelled()

        with engine.context() as context:
            asyncio.run(main(context))
            assert context.exitcodes() == [0, -15]
            assert engine.groups[0].kills == 0

    def test_ctrl_c_counts_as_one_at_every_instruction_before_the_wait(self) -> None:
        for count in itertools.count():
            engine = ScriptedEngine()
            with engine.context() as context, pytest.raises(KeyboardInterrupt):
                asyncio.run(_join_interrupted(context, interrupt := InterruptAfter(count)))
            assert engine.groups[0].stops == [(DEADLOCK, True)], interrupt.where
            if not interrupt.where:
                break
        assert count > 20  # else it has looked at nothing


class InterruptAfter:
    """Traces our modules, and gets a SIGINT after so many instructions in them."""

    def __init__(self, instructions: int) -> None:
        self._left = instructions
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> InterruptAfter | None:
        ours = frame.f_code.co_filename.endswith(("async_join.py", "interrupts.py", "handlers.py"))
        if not ours or frame.f_code.co_name in ("_stand_in", "_stand_back"):  # long loops
            return None
        frame.f_trace_opcodes = True
        # Python 3.12 tells of lines only.
        if event in ("line", "opcode") and not self.where:
            self._left -= 1
            if self._left < 0:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self


async def _join_interrupted(context: MultiprocessContext, interrupt: InterruptAfter) -> None:
    def end_trace() -> None:
        sys.settrace(before)
        if not interrupt.where:  # it has begun to wait
            signal.raise_signal(signal.SIGINT)

    before = sys.gettrace()
    asyncio.get_running_loop().call_soon(end_trace)
    sys.settrace(interrupt)
    await context


async def _join(context: MultiprocessContext) -> bool:
    return await context


class TestRepr:
    def test_from_start_to_end(self) -> None:
        engine = ScriptedEngine(count=4)
        with engine.context() as context:
            assert repr(context) == "<MultiprocessContext: 4 ranks, 4 running>"
            engine.groups[0].returns(0)
            assert context.join(timeout=0) is False
            assert repr(context) == "<MultiprocessContext: 4 ranks, 3 running, 1 returned>"
            engine.groups[0].raises(2, ValueError())
            with pytest.raises(ProcessRaisedException):
                context.join()
            expected = "<MultiprocessContext: 4 ranks, 1 returned, 2 stopped, 1 failed>"
            assert repr(context) == expected

    def test_of_a_single_rank(self) -> None:
        with ScriptedEngine(all_return, count=1).context() as context:
            context.join()
            assert repr(context) == "<MultiprocessContext: 1 rank, 1 returned>"


def test_what_ranks_print_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    def script(group: ScriptedGroup) -> None:
        group.prints(1, "hello\nwithout an end")
        all_return(group)

    places = [Place(rank, rank, 2, "cpu") for rank in range(2)]
    wanted = ShowRequest(lines=True, prefix="[{rank}] ", progress=False, captures=True)
    with ScriptedEngine(script).context(spectators=(View(wanted, places),)) as context:
        context.join()

    assert capfd.readouterr().out == "[1] hello\n[1] without an end\n"
