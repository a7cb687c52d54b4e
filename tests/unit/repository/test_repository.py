"""Rules of the repository: subpackages, one-way imports, short files, terms of the field."""

import ast
import re
import tomllib
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from fabricd.state.model import Link
from fabricd.state.model import Path as ProbedPath

REPO = Path(__file__).resolve().parents[3]
PACKAGES = ("fabricd", "telemetry", "clocksync", "compute", "fabric_train", "lab", "bench")
TREES = (*PACKAGES, "nccl_plugin", "prober", "tests", "examples")
SOURCES = {".py", ".h", ".hpp", ".cc", ".cpp"}
MOST_LINES = 500
MOST_METHODS = 31
MOST_ATTRIBUTES = 26

LOOSE = {
    "fabricd": {"__init__.py", "daemon.py", "engine.py"},
    "clocksync": {"__init__.py", "tai.py"},  # what jobs import
    "lab": {"__init__.py", "__main__.py", "cli.py", "cluster.py", "node.py", "topology.py"},
    "fabric_train": {"__init__.py", "run.py"},
}
"""By package that is divided into subpackages: the modules at its top level."""

BELOW = {
    "clocksync": {"pair": set(), "page": set(), "ptp": {"pair"}, "mesh": {"pair", "page", "ptp"}},
    "fabric_train": {
        "rules": set(),
        "messages": set(),
        "state": {"rules"},
        "groups": {"rules", "messages"},
        "shards": {"rules", "state"},
        "rank": {"rules", "messages", "state", "groups", "shards"},
        "frameworks": {"rules", "messages", "state", "groups", "rank"},
        "agent": {"rules", "messages"},
        "host": {"rules", "messages", "agent"},
    },
}
"""By package and subpackage: the subpackages that it may import."""

PRIVATE = {
    "fabricd": (
        "Aside Bridge CarrierBook Clockwork Desk Farewells Jury Lines NicBook Past Picture Probing "
        "Usual Warmth Whereabouts Wish WishError WishStore Wishes Word "
        "aside book bridge desk farewell hasty heed lean outcome past picture subjects telling "
        "urgency usual wants_words whereabouts who_like wishes"
    ),
    "clocksync": (
        "Accused Breath Clear Follower Gauge Mover Sight Taken Watched Word WordError WordPage "
        "clear farewell fellows guilty seniority standing wayfilter wire wordpage"
    ),
    "lab": "LongWay Pulse RouteKeeper Stand keeper longway pulse stand",
    "bench": "Trouble troubles untold",
    "prober": (
        "ClockWords Crossing Herald Promise Promises RecentLeast View ViewKind Views Word "
        "clock_words crossing crossings farewell farewells hear herald is_view kPathPromised "
        "on_trial promise promises promises_refused push_farewell recent_least row_ rx_row "
        "say_farewell speaker tx_row"
    ),
    "nccl_plugin": (
        "Grant Harvest Hearing Hearsay Newcomer Patience Rest Silence Tally Tenure Wants "
        "ahead bury condemns crossing crossings goes_ahead grant granted grants graves_ "
        "harvest hear hearing hearsay heed home home_ homeless homes hurry knock knocked newcomer "
        "newcomers_ on_grant owes patience rouse send_ahead silence stands_for stir stirred "
        "stranger tally tenure to_knock told_below_ trial trials wants"
    ),
}
"""By tree: private names that the glossary replaces, of classes, functions and modules; of C++
any identifier."""
PYTHON_NAME = re.compile(r"^\s*(?:class|def|async def) (\w+)", re.MULTILINE)
CXX_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
CXX_SKIPPED = re.compile(
    r"""//[^\n]*|/\*.*?\*/"""  # comments
    r"""|R"(?P<end>[^()\s\\]{0,16})\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'"""
    r"""|\b\d[\w.']*""",  # numbers, for 1'000 begins no character
    re.DOTALL,
)


def sources(tree):
    for path in sorted((REPO / tree).rglob("*")):
        if path.suffix in SOURCES and "build" not in path.relative_to(REPO).parts:
            yield path


class Module(NamedTuple):
    """``imports``: names as they stand, also in functions and under TYPE_CHECKING."""

    docstring: str
    imports: tuple[ast.Import | ast.ImportFrom, ...]


def parsed(text):
    tree = ast.parse(text)
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return Module(ast.get_docstring(tree) or "", tuple(found))


@cache
def modules():
    """Name → module, of all packages of ours."""
    out = {}
    for package in PACKAGES:
        for path in sorted((REPO / package).rglob("*.py")):
            parts = path.relative_to(REPO).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            out[name] = parsed(path.read_text())
    return out


def subpackages(package):
    """The packages right below a package."""
    return {
        name: module
        for name, module in modules().items()
        if name.count(".") == 1
        and name.startswith(f"{package}.")
        and (REPO / name.replace(".", "/")).is_dir()
    }


def graph_of(known):
    """Module → modules of ours that it imports."""
    out = {}
    for name, module in known.items():
        wanted = set()
        for node in module.imports:
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif node.module and not node.level:
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= below & known.keys()
                if not below <= known.keys():
                    wanted.add(node.module)
        out[name] = (wanted & known.keys()) - {name}
    return out


def circle(graph):
    """One circle of a graph as a list of its nodes; empty: there is none."""
    done, way = set(), []

    def visit(node):
        if node in way:
            return way[way.index(node) :]
        if node in done:
            return []
        way.append(node)
        for other in sorted(graph[node]):
            if found := visit(other):
                return found
        done.add(way.pop())
        return []

    return next((found for node in sorted(graph) if (found := visit(node))), [])


@pytest.mark.parametrize("package", sorted(LOOSE))
def test_a_package_shows_subpackages_and_few_modules(package):
    loose = {path.name for path in (REPO / package).glob("*.py")}
    assert loose == LOOSE[package]


@pytest.mark.parametrize("package", sorted(LOOSE))
def test_every_subpackage_says_what_lives_there_and_what_always_holds(package):
    found = subpackages(package)
    assert len(found) > {"fabricd": 15, "clocksync": 3, "lab": 12, "fabric_train": 6}[package]
    short = [name for name, module in found.items() if module.docstring.count("\n\n") < 2]
    assert set(short) <= {"fabricd.cli"}, "which is the program's help"


@pytest.mark.parametrize("package", sorted(LOOSE))
def test_no_subpackage_imports_anything_by_itself(package):
    """Or whoever needs one module of it would load all: the daemon's start is kept light."""
    assert {name for name, module in subpackages(package).items() if module.imports} <= {
        "fabricd.cli"
    }


@pytest.mark.parametrize("package", sorted(BELOW))
def test_subpackages_import_one_way(package):
    below = BELOW[package]
    for name, others in graph_of(modules()).items():
        if name.startswith(f"{package}.") and name.count(".") == 2:
            own = name.split(".")[1]
            used = {other.split(".")[1] for other in others if other.startswith(f"{package}.")}
            assert used - {own} <= below[own], name


def test_the_wheel_of_fabric_train_has_all_its_subpackages():
    project = tomllib.loads((REPO / "fabric_train" / "pyproject.toml").read_text())
    assert set(project["tool"]["setuptools"]["packages"]) == {
        "fabric_train", *subpackages("fabric_train")
    }  # fmt: skip


def test_circles_are_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    known = {
        "a": parsed("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b.c import D"),
        "b.c": parsed("def f():\n    import a"),
    }
    assert circle(graph_of(known)) == ["a", "b.c"]


def test_no_import_goes_in_a_circle():
    assert " → ".join(circle(graph_of(modules()))) == ""


def test_only_the_engine_writes_links_and_paths():
    """Detectors report to it. `operate.replay` has links of its own, `escalate` has none."""
    facts = {field.name for kind in (Link, ProbedPath) for field in fields(kind)} - {
        "index",
        "rail",
    }
    writers = set()
    for path in sources("fabricd"):
        name = str(path.relative_to(REPO / "fabricd"))
        if name in ("engine.py", "operate/replay.py") or name.startswith(("state/", "escalate/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and node.attr in facts
                and not (isinstance(node.value, ast.Name) and node.value.id == "self")
            ):
                writers.add(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert writers == set()


def classes(tree):
    """(Where, class) of all Python classes of a tree."""
    for path in sources(tree):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(REPO)}:{node.lineno} {node.name}", node


def methods(node):
    return [x for x in node.body if isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef)]


def stored(node):
    """(Target, value, annotation) of all that is assigned to an attribute below a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assign):
            pairs = [
                pair
                for target in each.targets
                for pair in (
                    zip(target.elts, each.value.elts, strict=True)
                    if isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple)
                    else [(target, each.value)]
                )
            ]
            found = [(target, value, "") for target, value in pairs]
        elif isinstance(each, ast.AnnAssign):
            found = [(each.target, each.value, ast.unparse(each.annotation))]
        else:
            continue
        yield from (item for item in found if isinstance(item[0], ast.Attribute))


def is_own(target):
    return isinstance(target.value, ast.Name) and target.value.id == "self"


def attributes(node):
    """Names that a class declares, or that its methods set on itself."""
    declared = {x.target.id for x in node.body if isinstance(x, ast.AnnAssign)}
    return declared | {target.attr for target, *_ in stored(node) if is_own(target)}


def hooks(node):
    """Names of a class's attributes that others are called by."""
    out = {
        x.target.id
        for x in node.body
        if isinstance(x, ast.AnnAssign) and "Callable[" in ast.unparse(x.annotation)
    }
    for method in methods(node):
        arguments = [*method.args.args, *method.args.kwonlyargs]
        callbacks = {
            x.arg for x in arguments if x.annotation and "Callable[" in ast.unparse(x.annotation)
        }
        for target, value, annotation in stored(method):
            given = isinstance(value, ast.Name) and value.id in callbacks
            if is_own(target) and (given or "Callable[" in annotation):
                out.add(target.attr)
    return out


def attached(node, names):
    """What below a node is hooked onto another object: a hook by its name, or any lambda."""
    return [
        f"{target.lineno} {ast.unparse(target)}"
        for target, value, _ in stored(node)
        if not is_own(target) and (target.attr in names or isinstance(value, ast.Lambda))
    ]


def test_hooks_and_who_attaches_them_are_found():
    (node,) = ast.parse(
        "class A:\n"
        "  told: Callable[[], None]\n"
        "  def __init__(self, told: Callable[[], None], n: int):\n"
        "    self.other, self.n = told, n\n"
        "    self.seen: Callable[[int], None] = lambda _: None\n"
    ).body
    assert hooks(node) == {"told", "other", "seen"}
    assert attributes(node) == {"told", "other", "seen", "n"}
    code = ast.parse("self.seen = f\na.seen = f\na.b.n = 1\na.x, b = lambda: 1, 2\na.seen()")
    assert attached(code, hooks(node)) == ["2 a.seen", "4 a.x"]


def test_no_class_of_fabricd_is_a_program():
    """Rows as they lie in shared memory are not counted: their layouts say how long they are."""
    large = [
        (name, len(methods(node)), len(attributes(node)))
        for name, node in classes("fabricd")
        if "NamedTuple" not in map(ast.unparse, node.bases)
    ]
    assert [x for x in large if x[1] > MOST_METHODS or x[2] > MOST_ATTRIBUTES] == []


def test_fabricd_attaches_no_hook_from_outside():
    """Who has to be called is given to the constructor, or subscribes."""
    names = {name for _, node in classes("fabricd") for name in hooks(node)}
    assert len(names) > 30
    found = [
        f"{path.relative_to(REPO)}:{each}"
        for path in sources("fabricd")
        for each in attached(ast.parse(path.read_text()), names)
    ]
    assert found == []


def test_no_hook_of_fabricd_waits_to_be_attached():
    """A public attribute that does nothing until somebody replaces it."""
    found = [
        f"{name}.{target.attr}"
        for name, node in classes("fabricd")
        for target, value, _ in stored(node)
        if is_own(target) and target.attr[0] != "_" and isinstance(value, ast.Lambda)
    ]
    assert found == []


def test_hosts_are_built_in_one_place_of_the_tests():
    built = {
        str(path.relative_to(REPO))
        for tree in TREES
        for path in sources(tree)
        if path.suffix == ".py" and re.search(r"\bStores\(", path.read_text())
    }
    assert built == {"fabricd/daemon.py", "lab/fuzz/control.py", "tests/unit/shared/whole_host.py"}


def test_no_file_is_two_things():
    long = {
        str(path.relative_to(REPO)): count
        for tree in TREES
        for path in sources(tree)
        if (count := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}


def identifiers(text):
    """Of C++, without comments, strings and numbers."""
    return set(CXX_IDENTIFIER.findall(CXX_SKIPPED.sub(" ", text)))


def names(tree):
    """Of modules, classes and functions; of C++ all that are in its code."""
    for path in sources(tree):
        yield path.stem
        text = path.read_text()
        yield from PYTHON_NAME.findall(text) if path.suffix == ".py" else identifiers(text)


def test_identifiers_are_those_of_code():
    text = """
    // a Grant   /* Hearsay
    const auto few = 1'000; Tally tally{"Silence \\" Rest", 'h'};  /* Wants
    Wants */ run(R"x(Patience " )x", 0x1'0);
    """
    assert identifiers(text) == {"const", "auto", "few", "Tally", "tally", "run"}


@pytest.mark.parametrize("tree", sorted(PRIVATE))
def test_no_name_is_private_language(tree):
    assert set(PRIVATE[tree].split()) & set(names(tree)) == set()
