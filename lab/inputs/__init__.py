"""Bytes packed by hand: what parsers are tested, fuzzed and measured with.

`kernel_replies` has replies of netlink and files of proc, `ring_file` a prober's ring, and
`probe_packets` probe packets. Unit tests, `lab.fuzz` and benchmarks call it.

Each is packed from the layout's source, never by the code that is tested with it.
"""
