"""docs/reference/plugin.md has the parameters that the plugin parses by; init() says what is."""

import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
DUMP = "nccl_plugin/fabric_params_dump"


@pytest.fixture(scope="module")
def table(native):
    shown = subprocess.run([native(DUMP)], check=True, capture_output=True, text=True, timeout=20)
    return shown.stdout


def test_the_documentation_has_the_table_that_the_plugin_parses_by(table):
    text = (REPO / "docs/reference/plugin.md").read_text()
    section = text.split("\n## Parameters\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert "\n".join(rows) + "\n" == table, f"paste the output of {DUMP}"


def test_no_parameter_is_read_past_the_table(table):
    """Whatever asks the environment in the plugin asks through the table."""
    sources = sorted((REPO / "nccl_plugin").glob("*/*.cpp"))
    readers = [
        path.relative_to(REPO)
        for path in sources
        if path.parent.name in ("abi", "core", "host", "src", "tcp", "verbs")
        and "getenv(" in path.read_text()
    ]
    assert readers == [Path("nccl_plugin/host/params.cpp")]
    names = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert len(names) == len(set(names))
    assert all(name.startswith(("FABRIC_", "NCCL_")) for name in names)
