"""Time from an IEEE 1588-2019 grandmaster over unicast: messages, negotiation, estimator. Pure.

`fabricd.clock.ptp` has the sockets. Clause numbers are those of IEEE Std 1588-2019.
"""
