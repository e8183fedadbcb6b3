"""Who else is there, and which node am I.

::

    stores       which store: served here, by another node, or etcd      tokens
      │
    session      one node's part in a job: what the agent talks to
      └─ membership   from its lease to its leaving                      store_threads, fence
           └─ node_logic    pure: entries and events in, writes out      records
                ├─ participant   pure: what one node does
                └─ job_rules     pure: what becomes of the job           placement, causes,
                                                                         job_state
    store        what a store can do
      ├─ client ═ wire ═ master   the embedded one                       connections, service,
      │                                                                  keyvalues
      └─ etcd                     a real one
"""
