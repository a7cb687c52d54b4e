"""Time from an IEEE 1588-2019 grandmaster over unicast: messages, negotiation, estimator.

`messages` are the bytes, `contract` is what a master has granted, `master` is one master,
`estimator` its time, `dataset` compares two of them, and `client` follows the best. `fabricd.clock`
has the sockets; `clocksync.mesh.trace` passes the result on.

All of it is pure. Clause numbers in these modules are those of IEEE Std 1588-2019.
"""
