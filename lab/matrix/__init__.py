"""The fault matrix of the plugin: every fault × every pattern of traffic × every size.

``cells`` says what there is and what is expected of it, ``fault_actions`` how each fault is made
and proved, ``job`` whether the traffic is moving and sound, ``observe`` what it says of itself,
``testbed`` keeps the lab and the running job. docs/design/fault-matrix.md.
"""
