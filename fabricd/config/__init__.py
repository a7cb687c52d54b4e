"""The daemon's configuration: one TOML file and its overrides, validated as a whole.

`loader` is the way in: it reads the files (`files`), validates them (`tables`, `values`, `checks`)
and returns a frozen `Config`, or raises `ConfigError` with every problem. `source` keeps the
configuration in force over reloads. The daemon, fabric-clock, `fabricctl` and the lab call it.

A configuration never changes after it was loaded, and a wrong file changes nothing.
"""
