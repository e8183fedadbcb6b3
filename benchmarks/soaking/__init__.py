"""The parts of ``soak.py``.

``work`` is what workers run, ``groups`` are groups with a fault in this very process. The others
are programs, each a process of its own: ``programs`` starts them, does something to them and
judges them, ``watch`` finds what they left, and ``interrupted`` and ``unprivileged`` are what
they run.
"""
