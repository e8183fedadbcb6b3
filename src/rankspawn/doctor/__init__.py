"""``rankspawn doctor``: what rankspawn sees on this machine, and what it would do here.

``facts`` looks and says nothing, ``findings`` judges, ``wording`` writes; nothing is started and
no framework imported.
"""
