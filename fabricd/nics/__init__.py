"""The NICs behind the links: counters, optics, PCIe, and what they say of a link.

`sweeper` and `reader` read in threads of their own, `monitor` turns increases into findings,
`speed` compares negotiated speeds, `memory` keeps what a restart needs. `watch` runs the threads
and the forecast. The daemon starts it; `fabricd.predict` makes the forecast.

A driver that does not answer stops its own NIC's readings, never the event loop.
"""
