"""Training jobs on this host, as their stats pages show them.

`directory` makes the directory that plugins write to, `stats_pages` reads it once a second and
removes the pages of ended processes. The daemon and its host call them; the page's layout and the
totals are `telemetry`'s.

Pages are hostile input: a page that is refused is counted and changes nothing, and the event loop
never waits for the file system.
"""
