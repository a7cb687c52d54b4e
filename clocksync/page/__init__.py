"""Pages in shared memory that the clock service writes.

Jobs read `clock_page` (fabric time) and `tai_page` (TAI); the prober reads `outbox` (messages to
send) and `ports` (source ports to probe from). `latch` is the file under all of them: two records
and a sequence number. `fabricd.clock` writes them; twins in C are `clocksync/include/fabric` and
`prober/include/fabric`.

A page has one writer, and a reader never waits: one record holds while the other is written. A page
is made whole and renamed into place. None of these modules loads NumPy, so that a job may import
them.
"""
