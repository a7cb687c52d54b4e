"""The daemon's side of the prober: what it is asked to probe, and what it measured.

`plan` makes the prober's configuration, `client` and `feed` keep the connection, `ring`, `layout`,
`decode` and `records` read its shared memory, `path_table` reads the paths once a tick, `counts`
and `totals` count packets, `monitor` says how well probes watch each link. `wire`, `sniff` and
`sniffing` are for `fabricctl sniff`, `keys` and `stamps` for the key and the clock service. The
host calls them; the clock service reads the same ring.

Records of a ring are validated before use; a corrupt one is counted and dropped.
"""
