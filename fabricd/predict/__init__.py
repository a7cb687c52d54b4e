"""How likely a link is to fail soon: trends of its FEC, its light, its flaps.

`gather` and `signal` make windows of readings, `trend` and `slope` fit them, `risk` combines them,
`forecast` is the result that the engine reads. `child` runs all of it in a process of its own every
five minutes; `nics.watch` starts it. NumPy is loaded there alone.

A forecast changes no state; it lowers the weight of at most half of the links.
"""
