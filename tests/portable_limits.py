"""The tests of what the portable way cannot do, each with the promise that it does not make.

With RANKSPAWN_PORTABLE=1 the whole suite runs without the newer system calls, but for these.
``docs/reference.md`` has the same promises in its table.
"""

from __future__ import annotations

from rankspawn.portable import is_forced

# The start methods that copy a process other than the parent.
SERVED = () if is_forced() else ("forkserver",)

# What is not promised, and the ends of the names of the tests that ask for it.
LIMITS = {
    "there is no fork server: forkserver starts fresh interpreters": (
        # What it forks, answers, or leaves when it is interrupted, stopped or killed.
        "::TestInterruptedStart::test_the_next_start_gets_its_own_workers[False]",
        "::TestInterruptedStart::test_the_next_start_gets_its_own_workers[True]",
        "::TestInterruptedStart::test_a_handler_that_asks_the_server_something_itself",
        "::TestInterruptedStart::test_between_a_descriptor_and_whoever_closes_it",
        "::TestInterruptedStart::test_at_every_line",
        "::TestTimeout::test_of_a_server_that_was_stopped",
        "::TestTimeout::test_of_an_interpreter_that_never_gets_ready",
        "::TestTimeout::test_while_another_thread_starts_the_same_server",
        "::test_a_fork_server_that_was_stopped_goes_on_when_it_is_needed",
        "::test_a_fork_server_that_was_stopped_does_not_hold_the_end_of_the_program",
        "::test_too_many_shared_descriptors_for_a_fork_server_are_refused",
        "::test_a_fork_server_that_is_still_importing_is_gone",
        "::test_pages_that_a_rank_touches[forkserver]",
        # Its own words for an interpreter that is none: spawn has others.
        "::test_an_executable_that_is_no_python[forkserver-/bin/false]",
        # What is executed gets a variable in whole.
        "::test_a_variable_that_is_too_large_for_the_system_is_named[forkserver-option]",
        # A fork does not run exit functions where Python has lost what that needs; a fresh
        # interpreter runs them.
        "::test_all_of_them_at_once[forkserver]",
    ),
    "there is no process that ranks of tests could be copies of": (
        "::test_ranks_are_copies_of_a_process_that_has_collected_their_test",
        "::test_tests_that_cannot_be_copied_get_fresh_processes",
        # Nobody imports a test for its ranks beforehand, and each of them prints what it imports.
        "[os._exit(3)-importing it has ended the process]",
        "[signal.pause()-importing it takes half of the test's timeout]",
        "[raise OSError('not here')-it cannot be collected there (*OSError: not here)]",
        "::test_output_of_modules_is_shown_once_with_s",
    ),
    "preload has no effect": (
        "::test_the_server_imports_what_a_script_imports",
        "::test_the_server_learns_what_ranks_have_imported",
        "::TestMasks::test_a_preloaded_module_has_the_system_reap_the_workers",
        "::TestTimeout::test_of_a_preload_that_never_ends",
        "::test_a_fork_server_imports_pytest_once",
        "::test_ctrl_c_while_a_fork_server_imports",
        "::test_a_module_to_preload_that_ends_the_server",
        "::test_a_job_that_does_not_begin_says_why",
        "::test_preload_imports_from_where_the_parent_does",
        "::test_a_module_that_cannot_be_preloaded_is_named_before_anything_starts",
        "::test_a_preloaded_module_that_makes_forking_unsafe_is_named[c]",
        "::test_a_preloaded_module_that_makes_forking_unsafe_is_named[driver]",
        "::test_a_preloaded_module_that_makes_forking_unsafe_is_named[python]",
    ),
    "large results are read, not mapped: files on disk cannot be sealed": (
        "::test_a_kept_large_array_has_no_descriptor_and_its_own_pages_only[spawn]",
        "::test_a_kept_large_array_has_no_descriptor_and_its_own_pages_only[fork]",
        "::test_a_kept_large_array_has_no_descriptor_and_its_own_pages_only[forkserver]",
    ),
    "a copy of the parent that C code forked keeps the guardian waiting": (
        "::test_workers_are_gone[spawn-forked in C]",
        "::test_workers_are_gone[fork-forked in C]",
        "::test_workers_are_gone[forkserver-forked in C]",
    ),
}


def why_not(node: str) -> str | None:
    """The promise that a test is about, and that the portable way does not make."""
    return next((why for why, tests in LIMITS.items() if node.endswith(tests)), None)
