"""Process groups: collectives that outlive the loss of a rank.

- ``collectives``: the group that torch sees; it lasts for the job. ``job_group``: groups beside it.
- ``generation_group`` and, by backend, ``gloo_group``, ``plugin_group``, ``nccl_group``: the
  connections of one generation, which end with it. ``backend`` chooses.
- ``plugin_library``: ``libfabric-collectives.so``. ``one_group``: the store of the default group.
- ``agent_store``: the store in which the ranks of a generation meet, kept by an agent.

Called by ``rank``. A collective of one generation never meets data of another.
"""
