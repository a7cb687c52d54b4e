"""The lock files are current, whole and used: nothing is installed by a version range."""

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lab.supply import locked, locking
from lab.supply.locking import LARGE, LOCKS, arguments

REPO = Path(__file__).resolve().parents[3]
INSTALLED = ("development", "torch-cpu", "torch")
"""What `.venv` is made of; of the last two one."""
HASH = "a" * 64
LINE = f"alpha==1.0 \\\n    --hash=sha256:{HASH}\n    # via -r x.in\n"
WHEELS = f"{locking.WHEELS_ALONE}\n\n"

PIP = re.compile(
    r"\bpip (?:install|wheel|download)\b"  # in shells, docs and messages
    r"|\bpip_in \S+"  # lab/bootstrap.sh
    r'|(?:"pip", |\bpip\(|argv = \[)"(?:install|wheel|download)"'  # as words of a list
)
CHECKED = ("--require-hashes", "--no-deps")
"""What makes a call of pip safe: hashes, or nothing but what is named, which is ours."""
UNCHECKED = {
    ("lab/bootstrap.sh", '"$1/bin/python" -m pip install -q'): "`pip_in`, whose callers are judged",
}
"""(File, how the line begins) → why it needs neither."""


def roots(lock):
    """The requirements that a lock is made of, as the project has them."""
    if lock == "torch-cpu":
        return [Requirement("torch")]
    wanted = [Requirement(line) for line in LOCKS[lock].requirements()]
    return [one for one in wanted if one.name != LARGE or LARGE not in LOCKS[lock].options]


def project(path):
    table = tomllib.loads((REPO / path).read_text())
    extras = table["project"].get("optional-dependencies", {}).values()
    return [*table["project"]["dependencies"], *(item for extra in extras for item in extra)]


def reached(names, requirements_of):
    """All names that those of ``names`` lead to."""
    found, waiting = set(), list(names)
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        for requirement in requirements_of(name):
            wanted = [{"extra": extra} for extra in (*extras, "")]
            marker = requirement.marker
            if marker is None or any(marker.evaluate(extra) for extra in wanted):
                next_one = (canonicalize_name(requirement.name), tuple(sorted(requirement.extras)))
                waiting.append(next_one)
    return {name for name, _ in found}


def installed_requirements(name):
    try:
        return [Requirement(line) for line in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return []


def starts(requirements):
    return [(canonicalize_name(x.name), tuple(sorted(x.extras))) for x in requirements]


def by_name(lock):
    found = {}
    for package in locked.read(lock):
        found.setdefault(package.name, []).append(package)
    return found


def test_each_lock_file_is_made_and_each_is_read():
    names = {path.stem for path in locked.FOLDER.glob("*.txt")}
    assert names == LOCKS.keys()
    inputs = {path.stem for path in locked.FOLDER.glob("*.in")}
    assert inputs == {"deepspeed", "frameworks", "lock", "megatron", "torchft", "torchtitan"}


@pytest.mark.parametrize("lock", LOCKS)
def test_each_line_is_one_version_with_hashes(lock):
    assert locked.read(lock)  # what else it would refuse is tested below


@pytest.mark.parametrize("path", ["pyproject.toml", "fabric_train/pyproject.toml"])
def test_every_dependency_is_locked_within_its_range(path):
    everywhere = [by_name(lock) for lock in ("runtime", "development", "sniff", "torch")]
    for requirement in map(Requirement, project(path)):
        versions = [
            package.version
            for lock in everywhere
            for package in lock.get(canonicalize_name(requirement.name), [])
        ]
        assert versions, f"{requirement} is in no lock: ./run lock"
        assert all(requirement.specifier.contains(v) for v in versions), (
            f"{requirement}: ./run lock"
        )


@pytest.mark.parametrize("lock", LOCKS)
def test_each_lock_has_what_it_is_made_of(lock):
    packages = by_name(lock)
    for requirement in roots(lock):
        found = packages.get(canonicalize_name(requirement.name), [])
        assert any(package.applies() for package in found), requirement
        assert all(requirement.specifier.contains(package.version) for package in found)


def test_the_extras_of_the_project_are_all_in_the_lock_of_development():
    names = by_name("development").keys() | {LARGE}
    assert {canonicalize_name(Requirement(x).name) for x in project("pyproject.toml")} <= names


@pytest.mark.parametrize("lock", LOCKS)
def test_each_package_is_there_for_another_or_for_the_project(lock):
    """As uv has written it. ``-r`` is the project itself."""
    packages = by_name(lock)
    for package in (each for found in packages.values() for each in found):
        known = {canonicalize_name(name) for name in package.via if not name.startswith("-r")}
        # Their torch is that of .venv.
        own = ("deepspeed", "frameworks", "megatron", "torchft", "torchtitan")
        known -= {LARGE} if lock in own else set()
        assert package.via, package.name
        assert known <= packages.keys(), package.name


def test_nothing_is_locked_that_nobody_requires():
    """As what is installed here says itself: each name is reached from the project's own."""
    names = reached([x for lock in INSTALLED for x in starts(roots(lock))], installed_requirements)
    locks = [by_name(lock) for lock in ("runtime", "development", "sniff", "torch-cpu")]
    wanted = {p.name for lock in locks for found in lock.values() for p in found if p.applies()}
    assert len(wanted) > 80
    assert wanted - names == set(), "required by nobody: ./run lock"


def test_nothing_that_is_required_is_missing_from_the_locks():
    """Of what is installed here: nothing came from Debian's packages instead of a lock."""
    names = reached([*starts(roots("development"))], installed_requirements)
    assert names - by_name("development").keys() == set()
    names = reached([*starts(roots("runtime"))], installed_requirements)
    assert names - by_name("runtime").keys() == set()


def test_what_is_installed_is_what_is_locked():
    """So tests speak of the versions that an operator gets."""
    for lock in ("runtime", "development"):
        for package in locked.read(lock):
            if package.applies():
                assert metadata.version(package.name) == str(package.version), "./run build"
    assert metadata.version(LARGE) in {
        str(package.version)
        for lock in ("torch-cpu", "torch")
        for package in locked.read(lock)
        if package.name == LARGE
    }


def test_locks_that_are_installed_together_agree():
    files = {}
    for lock in LOCKS.keys() - {"lock", "torchtitan"}:  # which has an environment of its own
        for package in locked.read(lock):
            if package.name == LARGE:  # 2.13.0, and 2.13.0+cpu
                continue
            key = (package.name, str(package.marker))
            files.setdefault(key, {})[package.version, package.hashes] = lock
    assert {key: found for key, found in files.items() if len(found) > 1} == {}
    (gpu,), (cpu,) = by_name("torch")[LARGE], by_name("torch-cpu")[LARGE]
    assert str(cpu.version) == f"{gpu.version}+cpu"


def test_places_of_wheels_are_those_of_pips_settings(monkeypatch):
    listing = "global.find-links='/a\\n/b'\nglobal.timeout='3'\n:env:.find-links='/c'\n"
    done = subprocess.CompletedProcess([], 0, listing)
    monkeypatch.setattr(locking.subprocess, "run", lambda *_, **__: done)
    assert locking.find_links() == ["/a", "/b", "/c"]


def test_a_lock_that_cannot_be_made_stays_and_so_do_later_ones(monkeypatch, tmp_path, capsys):
    """uv fails at the second one: the first is written, nothing after it is."""
    for lock in LOCKS:
        (tmp_path / f"{lock}.txt").write_text("torch==2.0 before\n")
    for lock in ("lock", "torchft"):
        (tmp_path / f"{lock}.in").write_text("a==1\n")
    first, second, *_ = LOCKS

    def uv(argv, cwd, **_):
        name = argv[argv.index("--output-file") + 1]
        Path(cwd, name).write_text("after")
        return subprocess.CompletedProcess(argv, 0 if name == f"{first}.txt" else 3)

    monkeypatch.setattr(locking, "FOLDER", tmp_path)
    monkeypatch.setattr(locking.subprocess, "run", uv)
    monkeypatch.setattr("sys.argv", ["lock", "--upgrade"])
    assert locking.main() == 3
    assert f"{second}.txt and later ones" in capsys.readouterr().err
    changed = {path.stem for path in tmp_path.glob("*.txt") if path.read_text() == "after"}
    assert changed == {first}


def test_no_lock_names_a_place():
    for path in locked.FOLDER.iterdir():
        assert not re.search(r"://|index|find-links|@|(?<![.\w])/\w", path.read_text()), path.name


def calls_of_pip(text):
    """Commands that have pip install, build or fetch something; continued lines are one."""
    joined = re.sub(r"\\+\n\s*", " ", text)
    return [line.strip() for line in joined.splitlines() if PIP.search(line)]


def test_pip_is_called_with_hashes_everywhere():
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPO, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    suffixes = (".sh", ".py", ".md", ".toml", ".yml", ".yaml", "run")
    here = Path(__file__).relative_to(REPO)
    names = [name for name in listing if name.endswith(suffixes) and name != str(here)]
    found = {(name, call) for name in names for call in calls_of_pip((REPO / name).read_text())}
    assert {name for name, _ in found} >= {
        "docs/operate/install.md", "docs/operate/upgrade.md", "lab/bootstrap.sh",
        "lab/supply/own_venv.py", "lab/supply/wheelhouse.py", "lab/vm/payload.py",
    }  # fmt: skip
    unsafe = {(name, call) for name, call in found if not any(word in call for word in CHECKED)}
    excused = {
        (name, call)
        for name, call in unsafe
        for (file, begin) in UNCHECKED
        if name == file and call.startswith(begin)
    }
    assert unsafe - excused == set()
    assert len(excused) == len(UNCHECKED), "an exception that is no more"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("/opt/x/bin/pip install fabricd", 1),
        ("$ pip wheel \\\n  -w wheels .", 1),
        ('argv = [python, "-m", "pip", "install", "-q", name]', 1),
        ("install_locked $VENV x || pip_in $VENV -e .", 1),
        ("pip config list", 0),
        ("pip is over TLS", 0),
    ],
)
def test_calls_of_pip_are_found(text, count):
    calls = calls_of_pip(text)
    assert len(calls) == count
    assert not any("\\" in call for call in calls)


def test_run_installs_from_the_locks():
    text = (REPO / "lab" / "bootstrap.sh").read_text()
    function = re.search(r"^install_locked\(\) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert function is not None
    assert 'pip_in "$1" --require-hashes "${files[@]}"' in function[1]
    used = re.findall(r"^[^#\n]*install_locked \S+ (\S+)", text, re.MULTILINE)
    assert used == ["torch-cpu", "torch", "development", '"$1"']
    # A changed lock is a changed stamp, so it is installed.
    assert re.search(r"stamp=\$STAMPS/venv-\$\(digest pyproject.toml requirements/\*.txt", text)


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_are_made_for_all_machines_with_wheels_alone(lock):
    argv = arguments(lock, ["--upgrade"], ["/some/place"])
    for word in ("--generate-hashes", "--universal", "--no-emit-index-url", "--no-emit-find-links"):
        assert word in argv
    assert argv[argv.index("--only-binary") + 1] == ":all:"
    assert argv[argv.index("--find-links") + 1] == "/some/place"
    order = list(LOCKS)
    constraints = [argv[i + 1] for i, word in enumerate(argv) if word == "--constraints"]
    assert constraints == [f"{name}.txt" for name in LOCKS[lock].constraints]
    assert all(order.index(name) < order.index(lock) for name in LOCKS[lock].constraints)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (WHEELS + "alpha>=1.0 \\\n    --hash=sha256:" + HASH, "not one version"),
        (WHEELS + "alpha==1.* \\\n    --hash=sha256:" + HASH, "not one version"),
        (WHEELS + "alpha \\\n    --hash=sha256:" + HASH, "not one version"),
        (WHEELS + "alpha==1.0", "no hash"),
        (WHEELS + "alpha==1.0 \\\n    --hash=md5:" + HASH[:32], "md5"),
        (WHEELS + "alpha==1.0 \\\n    --hash=sha256:" + HASH[:63], "--hash"),
        (WHEELS + "alpha @ https://a.example/a.whl \\\n    --hash=sha256:" + HASH, "version"),
        (WHEELS + "./alpha.whl \\\n    --hash=sha256:" + HASH, "alpha"),
        (LINE, "options"),
        (WHEELS + "--index-url https://a.example\n" + LINE, "options"),
        (WHEELS + "-r other.txt\n" + LINE, "options"),
        (WHEELS + "--no-binary alpha\n" + LINE, "options"),
        (f"{locking.FROM_SOURCE}\n{WHEELS}{LINE}", "options"),
    ],
)
def test_a_lock_that_says_less_is_refused(bad, why):
    with pytest.raises(ValueError, match=why):
        locked.parse(bad)


def test_one_package_comes_as_source_and_pip_reads_the_rule_first():
    """An exception before the rule would be dropped."""
    by_uv = f"# by uv\n{locking.FROM_SOURCE}\n{WHEELS}{LINE}"
    text = locking.wheels_first(by_uv)
    assert [str(one.version) for one in locked.parse(text)] == ["1.0"]
    assert locking.wheels_first(text) == text
    assert locking.wheels_first(f"# by uv\n{WHEELS}{LINE}") == f"# by uv\n{WHEELS}{LINE}"
    sources = [
        name for name in LOCKS if locking.FROM_SOURCE in (locked.FOLDER / f"{name}.txt").read_text()
    ]
    assert sources == ["deepspeed"]


def test_a_lock_is_read_with_markers_and_who_asks():
    text = f"""# by a tool
{WHEELS}alpha==1.0 ; python_version < '3' \\
    --hash=sha256:{HASH} \\
    --hash=sha256:{"b" * 64}
    # via
    #   -c other.txt
    #   Beta
beta==2.0+cpu \\
    --hash=sha256:{HASH}
    # via -r x.in

# The following packages were excluded from the output:
# gamma
"""
    alpha, beta = locked.parse(text)
    assert (alpha.name, str(alpha.version), alpha.via) == ("alpha", "1.0", {"Beta"})
    assert alpha.hashes == {HASH, "b" * 64}
    assert not alpha.applies()
    assert beta.applies()
    assert (str(beta.version), beta.via) == ("2.0+cpu", {"-r x.in"})
