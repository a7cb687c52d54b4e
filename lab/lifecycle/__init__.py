"""From the start of a lab to its end: its directory, its processes, and who owns both.

`registry` has the labs of this machine and removes stale ones; `procs` starts processes in a
namespace and ends them by pid. `owner` is the process that keeps a lab of ``./run lab up``, and
`owner_start` starts it. The cluster, the command line and `lab.vm` call it.

A process is named by pid and start time, so a reused pid is never signalled. What a killed process
leaves, the next start of any lab removes.
"""
