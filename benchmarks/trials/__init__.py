"""The programs that are timed, each a script of its own.

A script keeps next to nothing at its top level, and imports the rest below its guard: start
methods that run the main module again in every worker would pay for it, and the others not.
Its worker functions are there, because that is where users have theirs.
"""
