"""Whether the demo showed what it promises. Pure; the exit status is this and nothing else.

One rule: every figure of every fault was measured and is within its bound. What a busy machine
cannot blur is judged as it is: the bytes that the rails themselves carry, counts, the timeline,
detection and steering. A speed it does blur: of each speed, `TAKEN_COSTS` points less are demanded
for each point of the CPU that other processes took meanwhile, and once nothing is left to demand it
is shown as not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from lab.demo.analysis import Analysis, FaultResult

DETECT_WITHIN_S = 1.0
STEER_WITHIN_S = 1.0
"""Of one fault on a busy machine; the percentiles over many are the benchmark's to judge."""
TOLD_WITHIN_S = 3.0
"""The daemon's timeline says DOWN. A daemon may be slower than the plugin's own detectors."""
CARRIED_LEVEL = 0.65
"""Of what the surviving paths can carry: a job that does not run on them has half of it or less."""
AFTER_LEVEL = 0.75
"""Of full speed, once the rails have to be back: for a job that is slow on all of them. What a host
does to a virtual machine without showing as CPU time taken, has cost up to a fifth."""
TAKEN_COSTS = 3.0
"""Others' load costs more than its CPU time (caches, softirqs, a ring that waits for its slowest
rank): an eighth of the CPU has been seen to cost a third of the throughput."""
CROSSING_LEVEL = 0.05
"""Of what the two neighbours exchange: so much at least went over the cross-rail path."""


def failures(analysis: Analysis) -> list[str]:
    """What is wrong, the worst first; empty: the demo showed all of it."""
    found = list(_job(analysis))
    if not analysis.results:
        found.append("no fault was played")
    elif len(analysis.results) < analysis.planned:
        found.append(f"{analysis.planned - len(analysis.results)} faults were not played")
    for number, result in enumerate(analysis.results, 1):
        found += [f"fault {number}: {text}" for text in _fault(result)]
    return found


def ok(analysis: Analysis) -> bool:
    """Nothing is wrong."""
    return not failures(analysis)


def sentence(analysis: Analysis) -> str:
    """All in one line."""
    found = failures(analysis)
    if found:
        return "FAILED: " + "; ".join(found)
    judged = all(
        demanded(CARRIED_LEVEL, result.taken) and demanded(AFTER_LEVEL, result.taken_after)
        for result in analysis.results
    )
    speed = "full speed after each" if judged else "full speed wherever it could be judged"
    return (
        "every fault detected, steered and on the timeline, every flap counted, every rail carrying"
        f" again in time, {speed}"
    )


def _job(analysis: Analysis) -> Iterator[str]:
    if analysis.errors or analysis.corrupt_bytes:
        yield f"the job had {analysis.errors} errors and {analysis.corrupt_bytes} corrupt bytes"
    elif not analysis.clean:
        yield "a rank did not end by itself with exit status 0"


def _fault(result: FaultResult) -> Iterator[str]:
    if (wrong := late(result.detected_s, DETECT_WITHIN_S)) is not None:
        yield f"not detected{wrong}"
    if (wrong := late(result.told_s, TOLD_WITHIN_S)) is not None:
        yield f"no DOWN on the timeline{wrong}"
    if (wrong := late(result.steered_s, STEER_WITHIN_S)) is not None:
        yield f"not steered{wrong}"
    if not result.flaps_exact:
        seen = ", ".join(
            f"{host} {rail} {count}" for (host, rail), count in result.flaps_seen.items()
        )
        yield f"flaps miscounted ({seen}; {result.span.flaps} injected on each)"
    if (wrong := low(result.carried, demanded(CARRIED_LEVEL, result.taken))) is not None:
        yield f"the surviving paths carried {wrong} of what they can"
    if result.crossing is not None and (wrong := low(result.crossing.part, CROSSING_LEVEL)):
        yield f"the cross-rail path carried {wrong} of the neighbours' payload"
    if (wrong := late(result.rejoined_s, result.span.returns_within_s)) is not None:
        yield f"a rail does not carry its share again{wrong}"
    if (wrong := low(result.after, demanded(AFTER_LEVEL, result.taken_after))) is not None:
        yield f"{wrong} of full speed afterwards"


def demanded(level: float, taken: float) -> float:
    """What a speed has to reach while others took that part of the CPU; 0: it is not judged."""
    return max(0.0, level - TAKEN_COSTS * taken)


def late(seconds: float | None, within_s: float) -> str | None:
    """What to say of a time that is not within its bound; None: it is."""
    if seconds is None:
        return ""
    return f" within {within_s:g} s (it took {seconds:.2f} s)" if seconds > within_s else None


def low(part: float | None, level: float) -> str | None:
    """What to say of a part below its bound; None: it is not."""
    if part is None:
        return "an unknown part"
    return f"{part:.0%} (at least {level:.0%})" if part < level else None
