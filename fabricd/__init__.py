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


def __getattr__(name: str) -> str:
    """``__version__``, read when it is first asked for: that takes longer than most imports."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("fabricd")
    except PackageNotFoundError:  # run from a tree that is not installed
        found = "0+unknown"
    globals()[name] = found
    return found
