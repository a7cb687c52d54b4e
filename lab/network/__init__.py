"""The network of a lab: namespaces, veth pairs, addresses, routes and packet filters.

`netns` works inside a namespace, `build` makes and removes all that a topology names, `rtlink`
brings links up and down, and `nftdrop` drops or answers packets. `route_restorer` gives a host its
routes back when a rail comes up by hand; `asymmetric_path` makes one of two ECMP ways longer. The
cluster builds with it, and faults act through it.

It acts inside namespaces of labs only: never on an interface of the machine.
"""
