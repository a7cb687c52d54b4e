"""What operators ask of a running daemon: drains, maintenance windows, detectors switched off.

`overrides` has one override and those in force, `store` keeps them on disk, `manager` grants and
ends them, `effective` is what the engine applies. `detectors` lists what can be switched off.
`replay` puts recorded evidence through today's rules for `fabricctl promote`. Handlers of `control`
call the manager.

An override is in force only once it is stored, and never takes the last path.
"""
