"""fabricd, the host daemon: sees faults of a host's links, and steers traffic off them and back.

`daemon` opens and closes everything, `engine` decides and is pure; the docstring of each
subpackage says what lives there, who calls it and what always holds.

| subpackages | what |
|---|---|
| `config`, `process` | the configuration; the process's threads, CPUs and imports |
| `links`, `probes`, `nics`, `procfs` | what comes in: the kernel, the prober, the NICs |
| `detect`, `delay`, `predict` | what it means: verdicts, queues, failure risk |
| `state`, `runtime` | links and paths as the engine keeps them; the host around the engine |
| `steer`, `timeline`, `views` | what goes out: steer page, timeline, reports and metrics |
| `control`, `operate`, `cli` | operators: socket, overrides, `fabricctl` |
| `jobs`, `escalate`, `clock` | jobs' pages; the control fabric; the clock service |
| `doctor`, `plugincheck`, `support` | commands that look at a host |
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fabricd")
except PackageNotFoundError:  # run from a tree that is not installed
    __version__ = "0+unknown"
