"""What the daemon and fabric-clock need of their own process, and nothing of links.

`lazy_imports` keeps unused libraries out of memory and is imported before all else. `arguments`
makes the command line's parser, `cpu_affinity` and `realtime` place the threads on CPUs,
`blocking_call` runs calls that may hang in a thread of their own, `bounded_run` commands that may
hang or print without end. `cpu_meter` counts the CPU time of one task and of its threads.

No module here knows the engine, the host or the configuration.
"""
