"""What is shipped reads nothing without a limit that others may have written.

A file, pipe or socket of somebody else fills the memory of who reads it to its end. `EXCUSED` has
what the rules cannot know to be bounded, each with the reason.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_data_runs_no_code import dotted, origins

ROOT = Path(__file__).parents[3]
SHIPPED = ("clocksync", "compute", "fabric_train", "fabricd", "telemetry")

KERNEL = "procfs or sysfs: the kernel says some pages at most"
OWN = "no file: a method of ours"
LIMITED = "asyncio's stream, made with a limit: a longer line raises"
CHILD = "a program of ours, which answers a row for each link"
EXCUSED = {
    "clocksync/page/clock_page.py": {"_own.reader.read()": (1, OWN)},
    "fabric_train/agent/processes.py": {"Path(f'/proc/{pid}/stat').read_bytes()": (1, KERNEL)},
    "fabric_train/groups/gloo_group.py": {"(task / 'stat').read_text()": (1, KERNEL)},
    "fabric_train/host/job_socket.py": {"reader.readline()": (2, LIMITED)},
    "fabric_train/shards/host_memory.py": {
        "(root / 'proc/meminfo').read_text()": (1, KERNEL),
        "(root / _GROUP / 'memory.max').read_text()": (1, KERNEL),
        "(root / _GROUP / 'memory.current').read_text()": (1, KERNEL),
    },
    "fabricd/clock/boot.py": {
        "(proc / 'sys/kernel/random/boot_id').read_text(errors='replace')": (1, KERNEL),
    },
    "fabricd/clock/drift_file.py": {"path.read_text(errors='replace')": (1, KERNEL)},
    "fabricd/clock/paths.py": {"self._samples.read()": (1, OWN)},
    "fabricd/clock/phc.py": {"source.device.read()": (1, OWN)},
    "fabricd/detect/progress.py": {"self.read()": (1, OWN)},
    "fabricd/detect/receive_path.py": {"self.read()": (1, OWN)},
    "fabricd/escalate/job_server.py": {"Path(f'/proc/{pid}/stat').read_bytes()": (1, KERNEL)},
    "fabricd/links/ibports.py": {
        "(self._class / port.device / 'ports' / str(port.number) / 'state').read_text('ascii')":
            (1, KERNEL),
        "path.read_text(encoding='ascii')": (2, KERNEL),
    },
    "fabricd/nics/reader.py": {"path.read_text(encoding='ascii')": (2, KERNEL)},
    "fabricd/nics/watch.py": {"child.communicate(json.dumps(request).encode())": (1, CHILD)},
    "fabricd/process/cpu_affinity.py": {
        "(sysfs / 'online').read_text()": (1, KERNEL),
        "(sysfs / name).read_text()": (1, KERNEL),
        "Path(f'/proc/{pid}/comm').read_text(encoding='utf-8')": (1, KERNEL),
    },
    "fabricd/runtime/evaluator.py": {"self._prober.tables.read()": (1, OWN)},
    "fabricd/views/rdma.py": {"host.prober.tables.read(recent=True)": (1, OWN)},
    "telemetry/counters/devlink.py": {"self._dump.read()": (2, OWN)},
    "telemetry/counters/optics/source.py": {
        "self._ifindex.read_text(encoding='ascii')": (1, KERNEL),
    },
    "telemetry/counters/pci.py": {"path.read_text(encoding='ascii')": (1, KERNEL)},
    "telemetry/statsdir.py": {
        "(proc / str(pid) / 'stat').read_text(encoding='utf-8', errors='replace')": (1, KERNEL),
    },
    "telemetry/timeline.py": {
        "Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii')": (1, KERNEL),
    },
}  # fmt: skip
"""File → what is read there → how often, and why that is right."""
_READS = {"read", "readline", "readall", "read1"}
"""Of an open file; with a number they are bounded."""
_WHOLE = {"read_text", "read_bytes", "readlines", "communicate", "getlines"}
_FUNCTIONS = {
    "json.load", "tomllib.load", "shutil.copyfileobj", "subprocess.check_output",
    "zlib.decompress", "gzip.decompress", "bz2.decompress", "lzma.decompress", "numpy.fromfile",
    "fileinput.input",
}  # fmt: skip
_OPENERS = {"open", "fdopen", "makefile", "TemporaryFile", "NamedTemporaryFile"}
_STREAMS = {"sys.stdin", "sys.stdin.buffer"}


def _name(node: ast.AST) -> str:
    """The last word of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _bounded(call: ast.Call) -> bool:
    """Whether it has a limit: a first argument that is neither None nor a negative number."""
    given = [*call.args, *(word.value for word in call.keywords if word.arg in ("size", "n"))]
    if not given:
        return False
    text = ast.unparse(given[0])
    return text != "None" and not text.startswith("-")


def _files(tree: ast.AST) -> set[str]:
    """Names of open files, by the statements that open them."""
    found = set()
    for node in ast.walk(tree):
        pairs = []
        if isinstance(node, ast.With | ast.AsyncWith):
            pairs = [(item.optional_vars, item.context_expr) for item in node.items]
        elif isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        for target, value in pairs:
            if isinstance(value, ast.Call) and _name(value.func) in _OPENERS and target:
                found.add(ast.unparse(target))
    return found


def _iterated(node: ast.AST) -> list[ast.expr]:
    """What a statement or call goes through, item by item."""
    match node:
        case ast.For(iter=found) | ast.AsyncFor(iter=found) | ast.comprehension(iter=found):
            return [found]
        case ast.Call(
            func=ast.Name(id="list" | "enumerate" | "tuple" | "sorted"), args=[found, *_]
        ):
            return [found]
    return []


def _own_methods(tree: ast.AST) -> set[str]:
    """Methods that a class of the module has: on `self` these are no file's."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def findings(tree: ast.AST) -> Iterator[str]:
    """Reads of ``tree`` that have no limit, as they are written."""
    files, own, known = _files(tree) | _STREAMS, _own_methods(tree), origins(tree)
    for node in ast.walk(tree):
        for through in _iterated(node):
            opened = isinstance(through, ast.Call) and _name(through.func) in _OPENERS
            if opened or ast.unparse(through) in files:
                yield f"each line of {ast.unparse(through)}"
        if not isinstance(node, ast.Call):
            continue
        name, text = _name(node.func), ast.unparse(node)
        if isinstance(node.func, ast.Attribute):
            of_self = ast.unparse(node.func.value) == "self" and name in own
            if not of_self and (name in _WHOLE or (name in _READS and not _bounded(node))):
                yield text
        if dotted(node.func, known) in _FUNCTIONS:
            yield text
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if name == "run" and (
            words.get("capture_output", "False") != "False"
            or "PIPE" in (words.get("stdout", ""), words.get("stderr", ""))
            or words.get("stdout", "").endswith(".PIPE")
        ):
            yield f"{ast.unparse(node.func)} with a pipe"


def test_no_shipped_module_reads_without_a_limit():
    found = Counter()
    for package in SHIPPED:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            found.update((name, what) for what in findings(ast.parse(path.read_text())))
    excused = Counter(
        {
            (name, what): count
            for name, reads in EXCUSED.items()
            for what, (count, _) in reads.items()
        }
    )
    assert found - excused == Counter(), "telemetry.service.durable has reads with a limit"
    assert excused - found == Counter(), "exceptions that are no more"


@pytest.mark.parametrize(
    "text",
    [
        "sock.makefile().read()", "file.read(-1)", "file.read(None)", "file.read(size=-1)",
        "path.read_text()", "Path(name).read_bytes()", "(a / b).read_text('ascii')",
        "stream.readline()", "await reader.read()", "file.readlines()", "response.read()",
        "import json\njson.load(file)", "from json import load\nload(file)",
        "import tomllib as t\nt.load(file)", "import zlib\nzlib.decompress(data)",
        "with path.open() as file:\n    for line in file: pass",
        "with open(path) as f:\n    x = [line for line in f]",
        "with open(path) as f:\n    for i, line in enumerate(f): pass",
        "self.file = os.fdopen(fd)\nfor line in self.file: pass",
        "for line in open(path): pass", "import sys\nfor line in sys.stdin: pass",
        "with c as d, d.makefile('rb') as lines:\n    list(lines)",
        "process.communicate()", "import subprocess\nsubprocess.check_output(argv)",
        "subprocess.run(argv, capture_output=True)", "subprocess.run(argv, stdout=subprocess.PIPE)",
        "subprocess.run(argv, stderr=PIPE)", "self.read()", "class A:\n  def x(self): self.read()",
    ],
)  # fmt: skip
def test_each_read_without_a_limit_is_found(text):
    assert list(findings(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "file.read(100)", "file.read(MOST + 1)", "file.readline(MOST)", "file.read(size=MOST)",
        "os.read(fd, 1)", "sock.recv(4096)", "json.loads(text)", "subprocess.run(argv)",
        "subprocess.run(argv, stdout=log)", "durable.read(path, MOST)", "for line in lines: pass",
        "with path.open() as file:\n    file.read(1)\nfor line in text.splitlines(): pass",
        "class A:\n  def read(self): pass\n  def x(self): self.read()",
        "inflater.decompress(data, 1)",
        "subprocess.run(argv, capture_output=False)", "while line := file.readline(MOST): pass",
    ],
)  # fmt: skip
def test_what_has_a_limit_is_none(text):
    assert not list(findings(ast.parse(text)))
