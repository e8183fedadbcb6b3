"""Who runs where, and what each rank is told: decisions only.

``resolve`` settles devices, nodes and backend; ``hold_ports`` reserves this node's ports;
``make_plan`` joins both into one ``RankSpec`` per rank. Only ``ports`` touches the system.
"""
