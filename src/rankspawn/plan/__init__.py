"""Who runs where, and what each rank is told: decisions only.

``find_resources`` decides on devices and backend, ``find_nodes`` the nodes; ``hold_ports`` reserves
this node's ports; ``make_plan`` joins all into one ``RankSpec`` per rank. Only ``ports`` touches
the system.
"""
