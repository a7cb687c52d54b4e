"""What of a loop stays outside of compiled graphs, and graphs that a loop compiles anew."""

import importlib
import sys
from types import SimpleNamespace

import pytest
from on_demand import on_demand

compiled = on_demand("fabric_train.rank.compiled", needs="torch")


def test_a_job_that_compiles_nothing_loads_no_compiler(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    compiled.keep_out_of_graphs()
    graphs = compiled.CompiledGraphs()
    assert [graphs.count_new(), graphs.count_new()] == [0, 0]
    assert "torch._dynamo" not in sys.modules


def test_graphs_count_from_the_first_look_on(monkeypatch):
    counters = {"stats": {"unique_graphs": 3}}
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    graphs = compiled.CompiledGraphs()
    assert [graphs.count_new(), graphs.count_new()] == [0, 0], "those of the rehearsal"
    counters["stats"]["unique_graphs"] += 2
    assert [graphs.count_new(), graphs.count_new()] == [2, 0]
    counters["stats"]["unique_graphs"] = 0
    assert graphs.count_new() == 0, "the loop has reset them"
    assert compiled.anew(2, 3).startswith(
        "torch.compile has compiled 2 more graphs in the loop, on"
    )
    assert "1 more graph in the loop, on rank 0:" in compiled.anew(1, 0)


@pytest.mark.parametrize("already", [True, False])
def test_our_modules_are_kept_out_of_graphs_once(monkeypatch, already):
    added = []
    rules = SimpleNamespace(add=added.append)
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(trace_rules=rules))
    monkeypatch.setitem(compiled._state, "kept out", already)
    compiled.keep_out_of_graphs()
    compiled.keep_out_of_graphs()
    assert added == ([] if already else ["fabric_train"])


def test_the_gate_says_itself_that_it_is_no_part_of_a_graph(monkeypatch):
    hooks, called = [], []
    of_torch = importlib.import_module("torch.optim.optimizer")
    monkeypatch.setattr(of_torch, "register_optimizer_step_pre_hook", hooks.append)
    compiled.before_optimizer_steps(lambda *arguments: called.append(arguments))
    (hook,) = hooks
    hook("optimizer", (), {"closure": None})
    assert called == [("optimizer", (), {"closure": None})]
    assert hook._torchdynamo_disable
    assert hook._torchdynamo_disable_msg == compiled.REFUSAL
