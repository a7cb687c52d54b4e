"""Versions that are taken over, scripts that run transparently, and hooks at an import."""

import importlib
import sys
from pathlib import Path

import pytest

from fabric_train.frameworks import import_hooks, running, scripts, versions
from fabric_train.rules.loop import RuleError
from fabric_train.run import main


@pytest.mark.parametrize("version", ["5.24.0", "5.24.9", "5.24.1.dev0"])
def test_a_tested_version_is_taken_over(version):
    versions.check_version("transformers", version)


@pytest.mark.parametrize("version", ["5.23.9", "5.25.0", "6.0", "4.9", "nightly", "5.25rc1"])
def test_another_one_is_refused_in_one_sentence(version):
    with pytest.raises(versions.UntestedVersionError) as error:
        versions.check_version("transformers", version)
    assert str(error.value) == (
        f"transformers {version}: its loop is taken over from version 5.24.0 to before 5.25, "
        "which were tested"
    )


@pytest.mark.parametrize(
    "text",
    [
        "import fabric_train",
        "import os, fabric_train.frameworks as ours",
        "from fabric_train import join",
        "def main():\n    from fabric_train.frameworks import hugging_face",
    ],
)
def test_a_script_that_joins_by_itself_does_not_run_transparently(text):
    with pytest.raises(scripts.RefusedScriptError, match=r"train\.py imports fabric_train"):
        scripts.check_script("train.py", text)


@pytest.mark.parametrize("theirs", ["accelerate", "deepspeed"])
def test_a_loop_of_its_own_is_refused_before_it_begins(tmp_path, capsys, theirs):
    script = tmp_path / "train.py"
    script.write_text(f"def main():\n    from {theirs} import utils\n")
    assert main(["--standalone", "--transparent", str(script)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"fabric-run: {script} imports {theirs}, and neither transformers nor")
    assert "its loop is its own, and nobody else knows where a step of it ends" in said


def test_a_script_with_a_trainer_may_import_them_too():
    for loop in ("transformers", "lightning", "pytorch_lightning"):
        scripts.check_script(
            "train.py", f"import accelerate, deepspeed\nfrom {loop} import Trainer"
        )


@pytest.mark.parametrize("text", ["x = (", "\0", "def f(:"])
def test_what_is_no_script_is_refused(text):
    with pytest.raises(scripts.RefusedScriptError, match=r"train\.py: "):
        scripts.check_script("train.py", text)


def test_imports_are_read_anywhere_in_a_script():
    text = "import a.b\nfrom . import c\nfrom .d import e\ntry:\n  from f.g import h\nexcept I: ..."
    assert scripts.imports_of(text) == {"a", "f"}


def test_fabric_run_refuses_such_a_script_before_it_starts_a_process(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import fabric_train\n")
    assert main(["--standalone", "--transparent", str(script)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fabric-run: ")
    assert "imports fabric_train" in said
    assert len(said.splitlines()) == 1


def test_a_transparent_script_that_joins_through_another_module_is_told(monkeypatch):
    monkeypatch.setattr(running, "script", "train.py")
    with pytest.raises(RuleError, match=r"train\.py runs by --transparent and joins"):
        running.refuse_second_join()


def test_a_module_is_changed_when_it_is_imported_and_at_once_if_it_is(monkeypatch, tmp_path):
    (tmp_path / "hooked_before.py").write_text("value = 1\n")
    (tmp_path / "hooked_later.py").write_text("value = 2\nimport hooked_not\n")
    (tmp_path / "hooked_not.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = importlib.import_module("hooked_before")
    seen = []
    acts = dict.fromkeys(("hooked_before", "hooked_later"), lambda one: seen.append(one.value))
    import_hooks.on_import(acts)
    assert seen == [1]
    later = importlib.import_module("hooked_later")
    assert seen == [1, 2]
    assert Path(later.__file__).parent == tmp_path
    importlib.reload(before)
    assert seen == [1, 2]
