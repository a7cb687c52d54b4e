"""State of this host's links and paths, as the engine keeps it.

`model` has `Link` and `Path`, `rdma_rails` the same for RDMA beside them, `evaluation` what one
evaluation found, `rules` the configuration's times and thresholds, `saved` the document for the
next daemon. Views and publishers read the state.

Only `fabricd.engine` writes links and paths; whoever finds something reports it to the engine. The
state machines and damping, which move a link from state to state, are in `fabricd.links`.
"""
