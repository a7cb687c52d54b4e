"""A cluster on one machine: network namespaces, faults, and the demo. Not shipped.

Open first `lab.cluster` (a whole lab as a context manager), `lab.node` (one host of it) and
`lab.topology` (what it consists of); `lab.cli` is ``./run lab``. Subpackages: `lab.network`,
`lab.lifecycle`, `lab.faults`, `lab.services`, `lab.clocks` and `lab.observe` make a lab, break it
and watch it. `lab.vm` has the same in virtual machines. `lab.inputs`, `lab.fuzz`, `lab.matrix`,
`lab.testrun`, `lab.gpu`, `lab.demo` and `lab.docs` serve tests, demo and docs.

The daemon imports nothing of it.
"""
