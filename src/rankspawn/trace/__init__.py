"""What happened, as a picture: a recording of a group of ranks, and files made of it.

A thread of the parent looks at the ranks now and then while they run; the file is written after
their end. Nothing in here is imported unless it was asked for.
"""
