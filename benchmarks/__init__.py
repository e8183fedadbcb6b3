"""What rankspawn costs beside its peers, and whether it meets its goals.

One command measures everything, a second one installs the peers::

    python benchmarks/install_peers.py
    .venv-bench/bin/python -m benchmarks

``goals`` decides what to measure and what counts as met (pure), ``trials`` are the programs
that are timed, each run a process of its own, and the modules here run, keep and show them.
``soak`` and ``faults_of_peers`` are about faults, not speed, and are run by themselves.
"""
