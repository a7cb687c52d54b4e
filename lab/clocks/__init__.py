"""Clocks of a lab's hosts: made different, given a reference, and measured by other programs.

`virtual_clock` gives hosts that share a kernel different clocks, and `clock_host` runs fabric-clock
over one. `grandmaster` is a real ptp4l, `chronyd` a real chronyd. `preload` puts the libraries of
`lab/native` in front of a process's own calls, which shifts or slows its clock. Tests and
benchmarks of fabric time call it.

The machine's own clock is never set.
"""
