"""Programs that run in a lab: the daemons of hosts, brokers, and jobs.

`service` starts, stops and restarts a program; `host_config` writes a host's ``fabricd.toml``.
`mosquitto` is a broker, `management` the management network with broker, fabric-compute and
training jobs, and `perf` runs ``fabric-perf`` on every host. `lab.node`, the cluster, tests and
benchmarks call it.

Everything here is the real program; nothing is played.
"""
