"""One group of worker processes, from start to reap.

Whoever starts a process owns its end. ``child`` and what it imports run in the worker and
stay light; everything else runs in the parent.
"""
