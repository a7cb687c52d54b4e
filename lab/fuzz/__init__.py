"""Damaged inputs into every parser of the repository: ``python -m lab.fuzz``.

`runner` is the program and keeps the results. `parsers` damages inputs and has the parsers of
netlink, sysfs, PTP and messages; `control` has the control socket, `optics` module memory and PCIe,
and `pages` the files in shared memory. ``./run test nightly`` and `bench/detect` call it.

A parser may return, or refuse with an error of its own; anything else is a finding. Inputs are
seeded, so a finding can be had again.
"""
