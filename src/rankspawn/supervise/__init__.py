"""Supervising a group of ranks to one answer, wherever they run.

What is under it is a :class:`rankspawn.supervise.group.Group`: of local processes in ``workers``,
of other engines elsewhere. Nothing in here imports any of these.
"""
