"""``python -m lab.fuzz``."""

import sys

from lab.fuzz.runner import main

sys.exit(main())
