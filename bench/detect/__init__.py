"""Detection: flaps counted, faults seen in time and in the right place, nothing cried out falsely.

Each part makes what it needs. docs/design/measurements.md says how each figure is taken.
"""

from __future__ import annotations

from bench import on_demand

__getattr__ = on_demand.parts(__name__)
