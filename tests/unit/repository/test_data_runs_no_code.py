"""What is shipped turns no data into code: no pickle, no eval, no shell, but for one module."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHIPPED = ("clocksync", "compute", "fabric_train", "fabricd", "telemetry")
MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml",
    "runpy", "code", "codeop", "multiprocessing.managers", "multiprocessing.connection",
    "torch.package", "torch.multiprocessing", "torch.distributed.rpc", "xmlrpc", "imp",
}  # fmt: skip
"""Their formats hold code, or objects of any class; or they run a text."""
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "torch.load", "torch.jit.load", "numpy.load",
    "pandas.read_pickle", "logging.config.listen", "builtins.eval", "builtins.exec",
    "builtins.compile", "builtins.__import__",
    # A name that somebody else may take before the file is made.
    "tempfile.mktemp",
}  # fmt: skip
OBJECTS = {
    "all_gather_object", "broadcast_object_list", "scatter_object_list", "gather_object",
    "send_object_list", "recv_object_list",
}  # fmt: skip
"""Collectives of torch that unpickle what other ranks send; of whatever module."""
SAFE = {"shell": False, "allow_pickle": False, "weights_only": True}
"""Keywords that may have this constant alone."""
ALLOWED = {
    ("fabric_train/state/plain_values.py", "import of pickle"):
        "its reader and its writer take the names of one list alone",
    ("fabric_train/frameworks/transparent.py", "import of runpy"):
        "it runs the user's script, which fabric-run was told to run",
}  # fmt: skip


def origins(tree: ast.AST) -> dict[str, str]:
    """What names of a module stand for by its imports: ``{"np": "numpy", "run": "os.system"}``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                found[one.asname or top] = one.name if one.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def dotted(node: ast.AST, known: dict[str, str]) -> str:
    """``os.system`` for a name or attribute that is it, whatever it is called here; or nothing."""
    match node:
        case ast.Name(id=name):
            return known.get(name, f"builtins.{name}" if name in CALLS else "")
        case ast.Attribute(value=value, attr=attr):
            before = dotted(value, known)
            return before and f"{before}.{attr}"
    return ""


def findings(tree: ast.AST) -> Iterator[str]:
    """What of ``tree`` may run data."""
    known = origins(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                imported = [one.name for one in names]
            case ast.ImportFrom(module=str(module), names=names):
                imported = [f"{module}.{one.name}" for one in names]
            case _:
                imported = []
        for name in imported:
            parts = name.split(".")
            found = {".".join(parts[: count + 1]) for count in range(len(parts))} & MODULES
            yield from (f"import of {one}" for one in sorted(found))
            if name in METHODS or parts[-1] in OBJECTS:
                yield f"import of {name}"
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            if (name := dotted(node, known)) in METHODS:
                yield f"use of {name}"
            elif isinstance(node, ast.Attribute) and node.attr in OBJECTS:
                yield f"use of {node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in SAFE:
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            if value is not SAFE[node.arg]:
                yield f"{node.arg}={ast.unparse(node.value)}"


def test_no_shipped_module_runs_data():
    found = set()
    for package in SHIPPED:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            found |= {(name, what) for what in findings(ast.parse(path.read_text()))}
    assert found == ALLOWED.keys(), "no more, and none that is not there any more"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import torch, dill", "eval('1')",
        "exec(data)", "import code",
        "torch.load(path, weights_only=False)", "subprocess.run(line, shell=True)",
        "numpy.load(path, allow_pickle=True)", "__import__(name)",
        "import os\nos.system('true')", "import os\nrun = os.popen", "from os import system as run",
        "import os as o\no.system('true')", "from torch import load",
        "import torch as t\nt.load(path)",
        "import torch\ntorch.jit.load(path)", "subprocess.run(line, shell=flag)",
        "load(path, weights_only=flag)", "import tempfile\ntempfile.mktemp()",
        "from tempfile import mktemp", "import numpy as np\nnp.load(path)", "import yaml",
        "dist.broadcast_object_list(x)", "run = eval",
        "from asyncio import create_subprocess_shell",
        "import subprocess\nsubprocess.getoutput(line)", "import runpy",
        "from multiprocessing import connection", "import builtins\nbuiltins.exec(text)",
    ],
)  # fmt: skip
def test_each_way_is_seen(text):
    assert list(findings(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "re.compile('a')", "model.eval()", "subprocess.run(line, shell=False)", "json.loads(text)",
        "torch.save(value, path)", "Path('pickle')", "model.load(path)", "self.compile()",
        "import tempfile\ntempfile.mkstemp()", "import os\nos.read(fd, 1)", "json.load(file)",
        "from fabricd.os import system", "class A:\n    exec: int = 0",
        "load(path, weights_only=True)",
    ],
)  # fmt: skip
def test_what_is_no_way_is_not(text):
    assert not list(findings(ast.parse(text)))
