"""``fabric-run`` of one host of a job that spans several.

- ``core``: what this host promises, starts and reports. Pure.
- ``heartbeats``, ``local_states``: whom this host hears; where rank-local state is kept. Pure.
- ``peers``, ``peer_messages``: connections to the agents of the job's other hosts.
- ``job_socket``: the connection to fabricd of this host.
- ``agent``: the shell around all of it.
"""
