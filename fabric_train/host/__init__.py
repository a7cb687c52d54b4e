"""``fabric-run`` of one host of a job that spans several.

- ``core``: what this host promises, starts and reports. Pure.
- ``local_states``: where rank-local state of other hosts is kept. Pure.
- ``peers``, ``peer_messages``: connections to the agents of the job's other hosts.
- ``job_socket``: the connection to fabricd of this host.
- ``questions``: what processes and other agents ask of it.
- ``agent``: the shell around all of it.

Called by ``fabric_train.run``. A process of the job is started only for a generation that
fabric-compute ordered, and a host that a fence has reached starts none.
"""
