"""The daemon while it runs: the parts of one `Host` on one event loop, around the pure engine.

| module | part | what it owns |
|---|---|---|
| `settings` | `HostSettings` | the configuration in use |
| `probe_planner` | `ProbePlanner` | which paths are probed |
| `probe_loop` | `ProbeLoop` | news of prober and kernel, as they come |
| `probe_tick` | `ProbeTick` | what the prober's tables say, twice a second |
| `nic_input` | `NicInput` | what threads read of the NICs |
| `evaluator` | `Evaluator` | when the engine evaluates |
| `state_publisher` | `StatePublisher` | modes and steer page |
| `event_stream` | `EventStream` | the way of each event to timeline, log and subscribers |
| `state_saver` | `StateSaver` | when the state documents are stored |
| `operator` | `OperatorActions` | operator overrides at work |

`host` puts them together, each with all that it needs in its constructor, for `fabricd.daemon`.
`escalation` begins and ends the connection to the control fabric, and loads `fabricd.escalate`
only where there is a broker.

Nothing between a carrier record and the steer page waits for a disk, a socket or a thread. Nobody
sets an attribute of a part but itself; who wants to be told of something subscribes.
"""
