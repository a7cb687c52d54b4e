"""The tables of docs/reference have what the code has; all pages name what exists.

Metrics have their comparison in test_metrics.py and compute/test_compute_metrics.py, counters in
counters/test_counter_tables.py, the plugin's parameters in test_params_doc.py.
"""

import inspect
import re
import tomllib

import pytest
from pydantic import BaseModel

import compute.config
import fabricd.config.tables
from compute.mosquitto import access_list
from fabricd.cli import show
from fabricd.control.requests import Requests
from fabricd.escalate import refusals
from fabricd.operate.detectors import DETECTORS
from fabricd.probes.records import Refusal
from lab.cli import Kind as LabFault
from lab.docs import pages
from lab.docs.pages import DOCS, REPO
from lab.docs.reference import tables
from lab.faults import catalog
from lab.faults.base import Fault
from lab.matrix.cells import Fault as MatrixFault
from lab.vm.rdma.faults import known
from telemetry.events import EventKind, LinkState
from telemetry.messages.topics import Kind, Topic

REFERENCE = DOCS / "reference"
TEXTS = {str(page.relative_to(REPO)): page.read_text() for page in pages.pages()}


def text_of(name):
    return (REFERENCE / f"{name}.md").read_text()


def section(text, heading):
    """What stands between a heading and the next one of any level."""
    return re.split(r"^#+ ", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text):
    """What is in code quotes in the first column below the tables' heads, in order."""
    cells = re.findall(r"^\| (.+?) \|(?!.*\n\|---)", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_every_kind_of_event_has_its_row():
    rows = text_of("timeline").split("| kind | when |\n", 1)[1].split("\n\n", 1)[0]
    told = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert sorted(told) == sorted(kind.value for kind in EventKind)


def test_every_state_of_a_link_has_its_row():
    rows = re.findall(
        r"^\| (\d) \| (\w+) \|", section(text_of("timeline"), "Link states"), re.MULTILINE
    )
    assert [(int(number), name) for number, name in rows] == [
        (state.value, state.name.lower()) for state in LinkState
    ]


def test_the_control_sockets_requests_are_those_that_have_a_handler():
    handlers = Requests.handlers(object.__new__(Requests))
    told = first_cells(section(text_of("interfaces"), "The daemon's control socket"))
    assert sorted(told) == sorted([*handlers, "events"])


def test_the_probers_requests_are_those_that_it_takes():
    source = "".join(
        (REPO / "prober/src/shell" / name).read_text() for name in ("control.cpp", "setup.cpp")
    )
    taken = set(re.findall(r'op == "(\w+)"', source))
    text = section(text_of("interfaces"), "The prober's control socket")
    assert set(re.findall(r'^\| `\{"op": "(\w+)"', text, re.MULTILINE)) == taken


def test_every_reason_for_a_refused_packet_is_explained():
    rows = text_of("metrics").split("| `reason` of a refused packet |", 1)[1].split("\n\n", 1)[0]
    assert first_cells(rows) == [reason.value for reason in Refusal]


def test_every_reason_for_a_refused_message_is_explained():
    assert first_cells(section(text_of("topics"), "What is refused")) == list(refusals.REASONS)


def test_every_topic_has_its_row():
    rows = re.findall(
        r"^\| `([^`]+)` \|.*?\| `([\w.]+)` \|", section(text_of("topics"), "Table"), re.MULTILINE
    )
    assert dict(rows) == {topic_of(kind): kind.value for kind in Kind}


def test_the_access_list_is_the_one_that_a_broker_of_ours_gets():
    ((_, shown, _),) = pages.blocks(text_of("topics").split("\n## Access list\n", 1)[1])
    made = access_list(["compute-a"], ["ann"], "{prefix}")
    assert shown == made.partition("\n")[2], "all but its first line"


def topic_of(kind):
    """As the page writes it: ``host/{host}/job/{job}``."""
    if kind is Kind.STOP:
        return "stop"
    side, what = kind.value.split(".")
    name = {"job": "{job}", "order": "{host}", "view": "{host}"}.get(what, "")
    return Topic(kind, f"{{{side}}}", name).text("").removeprefix("/")


def test_the_list_of_detectors_is_that_of_the_command():
    page = TEXTS["docs/operate/operations.md"]
    shown = page.split("$ fabricctl detector list\n", 1)[1].split("$ ", 1)[0]
    assert re.findall(r"^([\w-]+) +(?:on|OFF)\b", shown, re.MULTILINE) == list(DETECTORS)


def test_the_sample_of_status_has_every_line_of_the_command():
    labels = re.findall(r'^        \("([\w ]+)", ', inspect.getsource(show.status), re.MULTILINE)
    page = TEXTS["docs/operate/operations.md"]
    shown = page.split("$ fabricctl status\n", 1)[1].split("```", 1)[0]
    told = [line.split("  ")[0] for line in shown.splitlines() if not line.startswith(" ")]
    assert len(labels) > 12
    assert [label for label in told if label in labels] == labels


def words_and_classes(text):
    """The first two cells of each row below the head."""
    return re.findall(r"^\| `([^|]+)` \| `([^|]+)` \|", text, re.MULTILINE)


def test_every_fault_of_the_lab_has_its_row():
    rows = dict(words_and_classes(section(text_of("lab"), "Faults")))
    assert list(rows) == [kind.value for kind in LabFault]
    assert {word: getattr(catalog, name).kind for word, name in rows.items()} == {
        word: word for word in rows
    }


def test_every_fault_of_the_labs_catalog_has_its_word_on_the_command_line():
    exported = (getattr(catalog, name) for name in catalog.__all__)
    faults = {
        each
        for each in exported
        if isinstance(each, type) and issubclass(each, Fault) and each is not Fault
    }
    assert sorted(fault.kind for fault in faults) == sorted(kind.value for kind in LabFault)


def test_every_fault_of_the_rdma_lab_has_its_row():
    rows = words_and_classes(section(text_of("lab"), "Faults of the RDMA lab"))
    told = {(word, name) for word, names in rows for name in names.split("`, `")}
    labs = known("namespaces"), known("pair")
    assert told == {(word, fault.__name__) for lab in labs for word, fault in lab.items()}


def test_every_fault_of_the_matrix_has_its_row():
    text = section(text_of("lab"), "Faults of the fault matrix")
    assert sorted(first_cells(text)) == sorted(fault.value for fault in MatrixFault)


# -- what pages name -----------------------------------------------------------------------------


def keys_of(model: type[BaseModel]):
    """Table → its keys, as the code has them."""
    return {name.strip("[]"): {key.name for key in keys} for name, keys in tables(model)}


FABRICD, COMPUTE = (keys_of(m) for m in (fabricd.config.tables.Config, compute.config.Config))


METRICS = set(
    re.findall(
        r"^\| `(fabric\w+?)(?:\{[^}]*\})?` \|",
        text_of("metrics") + text_of("compute"),
        re.MULTILINE,
    )
)
"""Of the tables that tests compare with the code."""
SAMPLES = {f"{name}_{part}" for name in METRICS for part in ("bucket", "sum", "count")}
RECORDED = set(
    re.findall(r"record: \w+:(fabricd_\w+):", (REPO / "deploy/prometheus/rules.yml").read_text())
)
UNITS = {path.name for path in (REPO / "systemd").rglob("*") if path.is_file()}
KINDS = {kind.value for kind in EventKind}


def keys_without_code(text):
    for table, key in re.findall(r"`\[\[?([a-z_.]+)\]\]? ([a-z_]+)\b", text):
        if key not in FABRICD.get(table, set()) | COMPUTE.get(table, set()):
            yield f"[{table}] {key}"
    for table in re.findall(r"`\[\[?([a-z_.]+)\]\]?`", text):
        if table not in FABRICD.keys() | COMPUTE.keys():
            yield f"[{table}]"


def metrics_without_code(text):
    for name in set(re.findall(r"\bfabric(?:d|_compute)_\w+", text)):
        of_a_family = name.endswith("_") and any(metric.startswith(name) for metric in METRICS)
        if not of_a_family and name not in METRICS | SAMPLES | RECORDED:
            yield name


def units_without_file(text):
    """``NAME@.service`` is made of ``NAME.service`` for pods (containers.md)."""
    for name in re.findall(r"\b(?:fabric|run-fabricd)[\w-]*@?\.(?:service|socket|mount)\b", text):
        if name not in UNITS and name.replace("@", "") not in UNITS:
            yield name


def kinds_without_code(text):
    yield from set(re.findall(r"fabricctl timeline [^`\n]*--kind (\w+)", text)) - KINDS


LOOKS = (keys_without_code, metrics_without_code, units_without_file, kinds_without_code)


@pytest.mark.parametrize("page", TEXTS)
def test_keys_metrics_units_and_kinds_that_a_page_names_exist(page):
    assert [name for look in LOOKS for name in look(TEXTS[page])] == []


@pytest.mark.parametrize(
    ("text", "look"),
    [
        ("`[probe] missses = 3`", keys_without_code),
        ("`[probes]`", keys_without_code),
        ("`[[maintenance]] netdev`", keys_without_code),
        ("fabricd_link_sate == 3", metrics_without_code),
        ("`fabricd_links_…`", metrics_without_code),
        ("`systemctl status fabricd-prober.service`", units_without_file),
        ("`fabricctl timeline --kind flaps`", kinds_without_code),
    ],
)
def test_a_name_that_does_not_exist_is_found(text, look):
    assert len(list(look(text))) == 1


PROGRAMS = re.compile(r"^set\(wheel_programs (.+)\)$", re.MULTILINE)


def test_every_program_that_is_installed_has_its_section_or_row():
    scripts = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]
    native = PROGRAMS.search((REPO / "cmake/wheel.cmake").read_text())[1].split()
    text = text_of("commands")
    told = {name.split()[0] for name in first_cells(section(text, "Other programs"))}
    told |= set(re.findall(r"^## (fabric\S+)$", text, re.MULTILINE))
    assert {*scripts, *native} <= told
    row = re.search(r"^\| programs: (.+?) \|", TEXTS["docs/operate/install.md"], re.MULTILINE)
    assert {*scripts, *native} == set(re.findall(r"`([\w-]+)`", row[1]))


def test_every_variable_that_a_program_reads_is_explained():
    """Of the plugin's test_params_doc.py says so. The rest: in ``os.environ``, or as an option."""
    trees = ("fabricd", "compute", "fabric_train", "telemetry", "clocksync")
    source = "".join(path.read_text() for tree in trees for path in (REPO / tree).rglob("*.py"))
    read = set(re.findall(r'"(FABRIC_[A-Z_]+)"', source))
    told = set(re.findall(r"`(FABRIC_[A-Z_]+)`", text_of("commands") + text_of("plugin")))
    assert read - told == set()
