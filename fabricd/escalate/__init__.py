"""The host's side of the control fabric: what it tells fabric-compute, and what it does for it.

Loaded only with ``[broker]`` in the configuration, by `fabricd.runtime.escalation`. Pure cores:
`evidence` (what probes say of other hosts), `orders`, `fences`, `job_registry`, `job_lines` and
`job_views` (what fabric-computes say of this host's jobs). Shells: `service` (the broker),
`job_server` (the job socket), `job_watch`, `outbox` (events that outlive us), `sockets`.
docs/reference/topics.md has the topics.

A fence is acknowledged only once it is applied, and an event is stored before it is sent.
"""
