"""What the daemon writes down, and what its successor takes over from there.

`rows` makes timeline rows of the engine's results, `levels` gives each row its level in the log,
`recorder` stores rows and state documents in a thread of its own, `restart_state` writes and reads
the state document. `runtime` and the parts that find something call them; the store itself is
`telemetry.timeline`.

Rows and documents are stored in the order in which they were put, so a document never accounts for
a flap whose row is not stored.
"""
