"""Readers of kernel tables in ``/proc`` that verdicts wait for.

`file` keeps a table open, `softnet` reads the receive backlogs for `detect.receive_path`,
`netdev_bytes` the byte counters for `detect.progress`. The daemon opens them and hands their
readings to the engine.

A table that cannot be read switches its source off with one line in the log; verdicts then do not
wait for it.
"""
