"""The ledger: what was changed, left out, moved or cut off is found, and named."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from compute.cli import app
from compute.ledger import Entry, Head, canonical, chain_hash, entry_after, sign_head, verify
from compute.signatures import KeyFileError, load_or_create, load_public, public_file

RECORDS = [("fence", {"host": f"h{i}", "n": i}) for i in range(6)]


def chain(records=RECORDS):
    entries = []
    for number, (kind, fields) in enumerate(records):
        last = entries[-1] if entries else None
        entries.append(entry_after(last, kind, fields, 1000.0 + number))
    return entries


@pytest.fixture
def key(tmp_path):
    return load_or_create(tmp_path / "ledger.key")


def test_an_untouched_ledger_is_right(key):
    entries = chain()
    heads = [sign_head("c0", entries[n], 5.0, key) for n in (0, 3, 5)]
    result = verify(entries, heads, key.public)
    assert (result.entries, result.heads, result.wrong) == (6, 3, ())
    assert result.proved
    emptied = verify([], [], key.public)
    assert emptied.wrong == ()
    assert not emptied.proved, "there is nothing to compare with"


@pytest.mark.parametrize("at", range(6))
def test_the_first_wrong_entry_is_named(key, at):
    good = chain()
    for name, wrong in {
        "changed": lambda e: dataclasses.replace(e, line=e.line.replace("h", "x", 1)),
        "rehashed": lambda e: dataclasses.replace(e, hash="0" * 64),
        "no JSON": lambda e: dataclasses.replace(e, line="{"),
    }.items():
        entries = [*good[:at], wrong(good[at]), *good[at + 1 :]]
        first = verify(entries, [], key.public).wrong[0]
        assert first.startswith(f"entry {at + 1}: "), (name, first)


def test_a_rewritten_chain_does_not_fit_the_head_that_was_published(key):
    head = sign_head("c0", chain()[4], 5.0, key)
    forged = chain([("fence", {"host": "other"}), *RECORDS[1:]])
    assert verify(forged, [], key.public).wrong == ()
    assert verify(forged, [head], key.public).wrong == (
        "head of entry 5: the ledger has another entry of that number",
    )


@pytest.mark.parametrize("left", [0, 1, 4])
def test_an_end_that_was_cut_off_is_shown_by_a_published_head(key, left):
    entries = chain()
    head = sign_head("c0", entries[4], 5.0, key)
    assert verify(entries[:left], [], key.public).wrong == ()
    assert verify(entries[:left], [head], key.public).wrong == (
        f"head of entry 5: the ledger ends at entry {left}: its end was cut off",
    )


def test_entries_that_are_left_out_or_moved_are_found(key):
    entries = chain()
    assert verify([*entries[:2], *entries[3:]], [], key.public).wrong[0].startswith("entry 3: ")
    swapped = [entries[1], entries[0], *entries[2:]]
    assert verify(swapped, [], key.public).wrong[0].startswith("entry 1: ")


def test_text_that_is_not_canonical_is_refused(key):
    first = chain()[0]
    line = json.dumps(first.record)
    spaced = Entry(1, line, chain_hash(first.record["previous"], line))
    assert verify([spaced], [], key.public).wrong == ("entry 1: its text is not canonical",)


@pytest.mark.parametrize(
    "change", [{"number": 3}, {"hash": "0" * 64}, {"owner": "c1"}, {"time": 6.0},
               {"signature": "00" * 64}, {"signature": "zz"}],
)  # fmt: skip
def test_a_head_that_was_changed_is_not_believed(key, change):
    entries = chain()
    head = dataclasses.replace(sign_head("c0", entries[1], 5.0, key), **change)
    [why] = verify(entries, [head], key.public).wrong
    assert "signature" in why


def test_a_head_of_another_key_is_not_believed(key, tmp_path):
    other = load_or_create(tmp_path / "other.key")
    entries = chain()
    [why] = verify(entries, [sign_head("c0", entries[0], 5.0, other)], key.public).wrong
    assert other.key_id in why


def test_a_head_survives_its_json(key):
    head = sign_head("c0", chain()[0], 5.0, key)
    assert Head.from_json(head.to_json()) == head


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
                    lambda inner: st.lists(inner, max_size=4)
                    | st.dictionaries(st.text(max_size=9), inner, max_size=8)))  # fmt: skip
def test_any_json_is_a_head_or_an_error(value):
    try:
        text = canonical(value)
    except ValueError:
        return
    with pytest.raises(ValueError, match="head"):
        Head.from_json(text)


@given(st.lists(st.tuples(st.text(max_size=9), st.dictionaries(st.text(max_size=9),
       st.integers() | st.text(max_size=9) | st.none(), max_size=4)), max_size=6))  # fmt: skip
def test_whatever_is_recorded_verifies(records):
    assert verify(chain(records), [], None).wrong == ()


def test_the_private_key_is_its_owners_and_stays_the_same(tmp_path):
    path = tmp_path / "ledger.key"
    first = load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_create(path).key_id == first.key_id
    assert load_public(public_file(path)).key_id == first.key_id
    public_file(path).write_text("spoiled")
    load_or_create(path)
    assert load_public(public_file(path)).key_id == first.key_id


@pytest.mark.parametrize("content", ["", "no key", "x" * 5000])
def test_a_file_without_a_key_is_not_overwritten(tmp_path, content):
    path = tmp_path / "ledger.key"
    path.write_text(content)
    with pytest.raises(KeyFileError, match=r"ledger\.key"):
        load_or_create(path)
    assert path.read_text() == content


def test_the_command_says_what_nothing_proves_and_fails_for_that_where_it_is_strict(tmp_path, key):
    config = tmp_path / "compute.toml"
    config.write_text(
        f'name = "c0"\nstate_dir = "{tmp_path}"\nstop_file = "{tmp_path}/STOP"\n'
        '[broker]\nhost = "127.0.0.1"\n'
    )
    entries = chain()
    exported = tmp_path / "ledger.jsonl"
    exported.write_text("".join(json.dumps(one.__dict__) + "\n" for one in entries))
    head = tmp_path / "head.json"
    head.write_text(json.dumps(sign_head("c0", entries[-1], 5.0, key).__dict__))

    def checked(*words):
        common = ["--config", str(config), "--file", str(exported)]
        common += ["--key", str(public_file(tmp_path / "ledger.key"))]
        done = CliRunner().invoke(app, ["ledger", "verify", *common, *words])
        return done.exit_code, done.output

    assert checked() == (0, "UNPROVED: 6 entries, no signed head to compare with\n")
    assert checked("--strict") == (1, "UNPROVED: 6 entries, no signed head to compare with\n")
    assert checked("--strict", "--head", str(head)) == (0, "ok: 6 entries, 1 signed head\n")


def test_a_line_without_end_is_no_entry(tmp_path, monkeypatch):
    monkeypatch.setattr("compute.cli.ledger_commands._LINE", 1000)
    public = load_or_create(tmp_path / "ledger.key").public
    (tmp_path / "ledger.pub").write_text(public.pem())
    config = tmp_path / "c.toml"
    table = f'name = "c0"\nstate_dir = "{tmp_path}"\nstop_file = "{tmp_path}/STOP"\n'
    config.write_text(f'{table}[broker]\nhost = "localhost"\n')
    verify_file = ["ledger", "verify", "--config", str(config), "--key", f"{tmp_path}/ledger.pub"]
    done = CliRunner().invoke(app, [*verify_file, "--file", "/dev/zero"])
    assert done.exit_code == 1, done.output
    assert "/dev/zero:1: longer than 1000 characters" in done.output.replace("\n", " ")
    for at, path in (("--head", "/dev/zero"), ("--key", "/dev/zero")):
        done = CliRunner().invoke(app, [*verify_file, at, path])
        assert done.exit_code == 1
        assert "longer than" in done.output
