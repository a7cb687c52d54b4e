"""``fabricctl doctor``: gathers facts of a host and derives findings from them.

`gather` reads files and asks the kernel; it decides nothing. `checks` are pure functions from
`facts.HostFacts` to findings; `checks.CHECKS` lists them. A new check is one function and one row.
The command line calls it, without a daemon too.

Nothing is changed on the host.
"""
