"""``fabric-run`` of a job on one host (``--standalone``), and the processes of any fabric-run.

- ``standalone``: the shell around ``fabric_train.rules.coordinator``.
- ``processes``: how the processes of one fabric-run start, connect and end.
- ``places``: ``LOCAL_RANK``. ``outputs``, ``lines``, ``log_files``: what ranks print.
  ``exit_status``, ``progress_line``: what people see of a job.
- ``hang_watch``, ``hangs``: which ranks of this host, and of a job, hang. Pure.
- ``key_values``: the store in which ranks meet. Pure. ``key_router`` brings questions to it.

Called by ``fabric_train.run`` and ``fabric_train.host``. No torch is loaded: the agent lives when
a process of the job dies, whatever it died of.
"""
