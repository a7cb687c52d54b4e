"""One host in the mesh: from its pairs and its neighbours' messages to fabric time.

`host` is the whole of it, `MeshHost`; `model` has its rules and status. `solver` is the damped
least-squares step, `neighbours` what each path shows of the host at its other end, `election` who
is the reference, and `bound` the error bound. `asymmetry` finds paths whose two ways differ, and
`ecmp_rerouter` moves these to other source ports. `messages` are what hosts tell each other,
`codec` their bytes, and `trace` carries TAI from hosts with PTP masters to the others.
`fabricd.clock` calls it ten times a second.

All of it is pure. A host needs nobody's permission and no leader: each knows its neighbours alone.
"""
