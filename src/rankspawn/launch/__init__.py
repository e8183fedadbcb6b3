"""``python -m rankspawn.launch``: one script, once per device, on one machine or many."""
