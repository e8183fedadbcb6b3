"""``rankspawn ps``, ``top``, ``stacks``, ``logs``, ``stop``: running jobs seen from outside."""
