"""``python tests/unit/compute/run_partitions.py FIRST COUNT``: random partitions by numbered seeds.

Goes on after a violation, and ends with the counts. Status 1 when there was one.
"""

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3]), str(Path(__file__).resolve().parent)]

from test_partitions import scenario  # noqa: E402


def main(first: int, count: int) -> int:
    began, takeovers, wrong = time.monotonic(), 0, []
    for number, seed in enumerate(range(first, first + count), 1):
        world = scenario(seed)
        takeovers += world.takeovers
        if world.violations:
            wrong.append(seed)
            print(f"seed {seed}: {world.violations[:3]}", flush=True)
        if number % 100 == 0 or number == count:
            spent = time.monotonic() - began
            print(
                f"{number} scenarios from seed {first}: {takeovers} takeovers, "
                f"violations in {len(wrong)}: {wrong}; {spent:.0f} s",
                flush=True,
            )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
