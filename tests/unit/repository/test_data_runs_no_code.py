"""What is shipped turns no data into code: no pickle, no eval, no shell, but for one module."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHIPPED = ("clocksync", "compute", "fabric_train", "fabricd", "telemetry")
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    ("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("torch", "load"),
    ("yaml", "load"), ("code", "interact"), ("numpy", "load"), ("pandas", "read_pickle"),
    ("asyncio", "create_subprocess_shell"), ("subprocess", "getstatusoutput"),
}  # fmt: skip
UNSAFE = {"shell": True, "allow_pickle": True, "weights_only": False}
ALLOWED = {
    ("fabric_train/state/plain_values.py", "import of pickle"):
        "its reader and its writer take the names of one list alone",
}  # fmt: skip


def findings(tree: ast.AST) -> Iterator[str]:
    """What of ``tree`` may run data."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (
                    f"import of {one.name}" for one in names if one.name.split(".")[0] in MODULES
                )
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                yield f"import of {module}"
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield f"call of {name}"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in METHODS:
                yield f"use of {module}.{name}"
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg in UNSAFE and UNSAFE[keyword.arg] is value:
                    yield f"{keyword.arg}={value}"


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
        "exec(data)", "os.system('true')", "run = os.popen", "torch.load(path)",
        "torch.load(path, weights_only=False)", "subprocess.run(line, shell=True)",
        "numpy.load(path, allow_pickle=True)", "__import__(name)",
    ],
)  # fmt: skip
def test_each_way_is_seen(text):
    assert list(findings(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "re.compile('a')", "model.eval()", "subprocess.run(line, shell=False)", "json.loads(text)",
        "torch.save(value, path)", "Path('pickle')",
    ],
)  # fmt: skip
def test_what_is_no_way_is_not(text):
    assert not list(findings(ast.parse(text)))
