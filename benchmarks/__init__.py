"""What rankspawn costs beside its peers, and whether it meets its goals.

One command installs the peers, the second one measures in five minutes::

    python benchmarks/install_peers.py
    .venv-bench/bin/python -m benchmarks --quick

``goals`` is one list of what is measured and what counts as met (data), ``trials`` are the
programs that are timed, each run a process of its own; ``planning`` and ``judging`` decide (pure),
``running`` runs, ``measurements_file`` keeps, ``page`` shows. The others are about faults, or look
at one thing, and are run by themselves.
"""
