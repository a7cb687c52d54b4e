"""What the daemon shows of itself: documents for `fabricctl`, the snapshot for the metrics.

`report` and `explain` make JSON of the host, `rdma` its part of RDMA, `history` a link's rows for
a reader, `host_check` one verdict for a scheduler. `metrics_endpoint` serves the metrics from
`snapshot_cache`. Handlers of `control` and the command line call them.

A view reads the host and never changes it.
"""
