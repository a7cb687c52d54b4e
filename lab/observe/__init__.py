"""What a lab is doing: links, pages, packets, logs and alerts.

`status` is what ``./run lab status`` shows, `stats_pages` reads the plugin's pages of a host,
`traffic` counts datagrams that arrive, and `log_scan` finds sanitizer reports and tracebacks.
`prometheus` scrapes all hosts by the shipped rules, and `replay` plays a recording to its rule
engine. Tests, the cluster and the command line call it.

Looking changes nothing in the lab.
"""
