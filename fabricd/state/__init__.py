"""State of this host's links and paths, as the engine keeps it.

`model` has `Link` and `Path`, `rdma_rails` the same for RDMA beside them, `evaluation` what one
evaluation found. `fabricd.engine` owns all of it; views and publishers read it.

State machines and damping, which move a link from state to state, are in `fabricd.links`.
"""
