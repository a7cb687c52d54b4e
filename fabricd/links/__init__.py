"""This host's links: what the kernel says of them, their state machine, and damping.

Pure cores: `machine` (the table of states), `health`, `damping`, `flaps` (every carrier loss
counted once), `probe_state`, `lldp`. Shells: `watcher` and `rtnl` (rtnetlink), `inventory`,
`ibports` and `portwatch` (verbs ports), `lldp_source`. `carrier` and `carrier_sources` turn
readings into rows of the timeline. The engine drives the state machines; the daemon opens the
shells.

A carrier loss is one count, once, whoever reports it first and over any restart.
"""
