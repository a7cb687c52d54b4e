"""Slow, congested or broken: one-way delay and queueing per path, rails that lag their siblings.

`path` and `line` estimate base delay and queue, `fabric` takes offsets from fabric time, `view`
sums up by link, `rails` compares the jobs' rails, `condition` names one condition for each link.
`watch` calls them once a second for the host.

It steers nothing; the loss test is told where queues stand.
"""
