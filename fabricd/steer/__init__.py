"""What traffic is told: weights by rail and path, on the steer page that plugins read.

`policy` decides weights from states, `inputs` gathers its inputs, `modes` says where the host
observes, `page` is the shared-memory page, `publisher` writes it and reports what changed. The
host calls the publisher; the plugin reads the page.

The last path that carries is never taken, and a page whose heartbeat is old counts as absent.
"""
