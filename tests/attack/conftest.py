"""Attacks by somebody who was told nothing but the threat model.

What a test says is what has to hold; one that is expected to fail names the hole and the mend.
Those marked `lab` have real processes of their own, the others belong to the unit tier.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# Worlds of jobs and brokers that are tests' own.
sys.path += [str(TESTS / "unit" / "compute"), str(TESTS / "lab")]
