"""What is measured for each goal, and what counts as met. Pure: no module here runs anything.

Each has ``trials(scale)``, what to run, and ``lines(table, scale)``, what came of it.
"""
