"""Finds sanitizer reports and Python tracebacks in the logs of a lab."""

from __future__ import annotations

import re
from pathlib import Path

SANITIZER = (
    r"ERROR: (?:Address|Leak|Thread|Memory)Sanitizer|WARNING: ThreadSanitizer|"
    r"SUMMARY: \w*Sanitizer|runtime error:"
)
_SANITIZER = re.compile(SANITIZER)
_REPORT = re.compile(SANITIZER + r"|Traceback \(most recent call last\)")


def has_sanitizer_report(text: str) -> bool:
    """Whether ASan, LSan, MSan, TSan or UBSan reported something in this text."""
    return _SANITIZER.search(text) is not None


def scan_logs(root: Path) -> list[str]:
    """``file:line: text`` of sanitizer reports and tracebacks in all ``*.log`` under ``root``."""
    found = []
    for path in sorted(root.rglob("*.log")):
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if _REPORT.search(line):
                context = " | ".join(lines[number : number + 8])
                found.append(f"{path.relative_to(root)}:{number}: {line} {context}"[:2000])
    return found
