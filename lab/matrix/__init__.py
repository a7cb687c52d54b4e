"""The fault matrix of the plugin: every fault × every pattern of traffic × every size.

`cells` says what there is and what is expected of it, `fault_actions`, `daemons` and `own` how each
fault is made and proved. `job` says whether the traffic is moving and sound, `observe` what it says
of itself. `testbed` keeps the lab and the running job; `stall_watchdog` measures how long this
process and the ranks were kept from running.
``tests/lab/test_matrix.py`` calls it; see docs/design/fault-matrix.md.

A cell counts only with evidence that its fault was in force.
"""
