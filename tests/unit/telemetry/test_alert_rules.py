"""The shipped alert rules: each fires in its test, groups, and has its page of the runbook."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
RUNBOOK = ROOT / "docs/operate/runbook"
SECTIONS = ["Meaning", "Check", "Do", "Verify"]
FIELD = re.compile(r'^ +(summary|description|runbook_url|severity): "?(.*?)"?$', re.MULTILINE)


def alerts():
    """Name → fields of each rule; promtool has checked that the file is YAML (`test_metrics`)."""
    _, *found = RULES.read_text().split("- alert: ")
    for text in found:
        name, body = text.split("\n", 1)
        body = re.split(r"^  - name: |^ +#", body, flags=re.MULTILINE)[0]
        expr, rest = re.split(r"^        (?:for|labels): ", body, maxsplit=1, flags=re.MULTILINE)
        severity = re.search(r"\{severity: (\w+)\}", rest).group(1)
        yield name, dict(FIELD.findall(rest)) | {"expr": expr, "severity": severity}


ALERTS = dict(alerts())


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_groups_and_leads_to_its_page(name):
    notes = ALERTS[name]
    assert set(notes) == {"summary", "description", "runbook_url", "expr", "severity"}
    # A label in the summary makes a notification of each link: they would not group.
    assert "{{" not in notes["summary"]
    assert len(notes["summary"]) <= 80
    assert "{{" in notes["description"], "which one?"
    assert notes["runbook_url"] == f"docs/operate/runbook/{name}.md"
    assert notes["severity"] in {"info", "warning", "critical"}
    text = (ROOT / notes["runbook_url"]).read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    for section in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        assert len(section.split()) >= 3, "a section that says nothing"


def test_no_page_of_the_runbook_is_without_an_alert():
    assert {path.stem for path in RUNBOOK.glob("*.md")} - {"README"} == set(ALERTS)
    index = (RUNBOOK / "README.md").read_text()
    assert set(re.findall(r"\((Fabric\w+)\.md\)", index)) == set(ALERTS)
    mentioned = set(
        re.findall(r"\bFabric[A-Z]\w+", "".join(p.read_text() for p in RUNBOOK.iterdir()))
    )
    assert mentioned == set(ALERTS), "pages name alerts that there are"


def test_each_alert_fires_in_the_rules_own_test():
    tests = "".join(path.read_text() for path in RULES.parent.glob("rules_*test.yml"))
    assert {name for name in ALERTS if f'alertname="{name}"' not in tests} == set()


def test_alerts_go_by_no_counter_of_lost_packets():
    """Loss is judged by the daemon, which knows what was an outage."""
    assert [name for name, rule in ALERTS.items() if "packets_lost" in rule["expr"]] == []


@pytest.mark.parametrize("name", sorted(n for n in ALERTS if n.startswith("FabricLink")))
def test_planned_work_on_a_link_alerts_nobody(name):
    assert re.search(r"fabricd_link_maintenance(\[\w+\]\))? == 1", ALERTS[name]["expr"])
