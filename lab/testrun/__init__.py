"""How ``./run test`` runs: what pytest found, retries, totals, nightly steps, fresh machines.

`run_report` is what one run of pytest found, `retry_alone` runs failed tests three times alone, and
`totals` prints the last lines. `nightly` has the steps of ``./run test nightly``. `just_booted`
runs a command with clocks that begin near 0, `fresh` in a bare Debian. `lab/test.sh` and
`tests/conftest.py` call it.

A test that fails is never hidden: a flaky one is counted and named.
"""
