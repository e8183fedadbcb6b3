"""``rankspawn doctor``: what rankspawn sees on this machine, and what it would do here.

``facts`` looks and forecasts, ``findings`` says what that means, ``report_text`` writes it down;
nothing is started and no framework imported.
"""
