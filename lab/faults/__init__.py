"""Faults: what can be broken in a lab, when it was, and how it is undone.

`catalog` has all faults under one name. `base` says what a fault is; `ports`, `packets`, `hosts`,
`addresses` and `flap` have the kinds, and `flapper` is the process that flaps on time. `holds`
counts who holds a port down, `schedule` plays several faults, `truth` records them, and `reap`
undoes those of killed processes. Tests, benchmarks, the demo and the command line inject them.

Faults compose: the end of one is not the end of another. Each start and end is in the ground truth
with its time.
"""
