"""``fabric-run`` of a job on one host (``--standalone``), and the processes of any fabric-run.

- ``standalone``: the shell around ``fabric_train.rules.coordinator``.
- ``processes``: how the processes of one fabric-run start, connect and end.
- ``key_values``: the store in which ranks meet. Pure. ``key_router`` brings questions to it.

Called by ``fabric_train.run`` and ``fabric_train.host``. No torch is loaded: the agent lives when
a process of the job dies, whatever it died of.
"""
