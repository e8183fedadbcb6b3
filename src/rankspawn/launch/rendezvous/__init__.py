"""Who else is there, and which node am I.

::

    opening      which store: served here, by another node, or etcd      addresses, tokens
      │
    session      one node's part in a job: what the agent talks to       decisions, outbox
      └─ link    one membership, from its lease to its leaving           keeping, fence
           └─ conductor   pure: entries and events in, writes out        records
                ├─ participant   pure: what one node does                lease_times
                └─ membership    pure: what becomes of the job           placement, dismissals,
                                                                         causes, job_state
    store        what a store can do
      ├─ client ═ wire ═ master   the embedded one                       peers, service, keyvalues
      └─ etcd                     a real one
"""
