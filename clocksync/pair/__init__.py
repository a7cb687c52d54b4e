"""Two clocks and the path between them: from stamps of probe trains to a line with a bound.

`model` has the result, `Pair`, and the estimator's `Rules`; `linear` is a time as a line over a
clock. `trains` keeps the trains that met no changing queue, `points` keeps their points, `fit`
computes the line, and `estimator` drives these for one path. `steps` detects a stepped clock,
`base_delay` and `oneway` handle standing queues, `offset_tracker` and `kalman` follow the offset
between windows. `crossing` relates a NIC's clock to the host's. `clocksync.mesh`, `clocksync.ptp`
and `fabricd.clock` call it.

All of it is pure: the time of a call is a parameter. It imports no other subpackage.
"""
