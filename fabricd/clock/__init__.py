"""fabric-clock: feeds `clocksync` with what the prober measured, and writes the clock page.

`service` is one step of the loop; `paths`, `samples` and `fit_scheduler` bring trains to the
estimator, `clocks`, `phc`, `rate`, `boot` and `wall` read this host's clocks, `drift_file` keeps
the rate over restarts, `restart_handover` the page's line. `ptp` and `chrony` are the edges to PTP
and chronyd. `status_writer` writes the document that `status_reader` reads for the daemon, which
also has `counts`. A process of its own (``fabric-clock``) runs the service.

The system clock is read and never set.
"""
