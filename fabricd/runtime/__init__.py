"""The daemon while it runs: one `Host` on one event loop, around the pure `fabricd.engine`.

`host` hands facts to the engine and publishes what it decides; `escalation` begins and ends the
connection to the control fabric, and loads `fabricd.escalate` only where there is a broker.
`fabricd.daemon` makes both.

Nothing between a carrier record and the steer page waits for a disk, a socket or a thread.
"""
