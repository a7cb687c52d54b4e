"""A job's key: who a member is, sealed; no generation with one who has no seal."""

import dataclasses
import io
import os
import re
import sys

import pytest
from test_host_core import Host, generation, setup

from fabric_train.host.core import HostCore
from fabric_train.host.job_key import JobKey, KeyFileError, read_key
from fabric_train.messages.documents import AgentDocument, Member, parse, to_data

KEY = JobKey("gpt", b"k" * 32)


def sealed(one, key=KEY):
    seal = key.seal(one.host, one.incarnation, one.address, one.store, one.token)
    return dataclasses.replace(one, seal=seal)


def with_key():
    host = Host()
    host.core = HostCore(dataclasses.replace(setup(), key=KEY))
    host.alive.clear()
    host.perform(host.core.start())
    host.join(*host.alive)
    return host


def test_a_document_says_the_keys_hash_and_the_seal_and_not_the_key():
    document = with_key().core.document()
    mine = Member(document.host, document.incarnation, document.address, document.store,
                  document.token, document.seal)  # fmt: skip
    assert document.key == KEY.id
    assert KEY.is_sealed(mine)
    assert "kkkk" not in repr(KEY) + repr(document)
    assert parse(AgentDocument, to_data(document)) == document
    plain = to_data(Host().core.document())
    assert not {"key", "seal"} & plain.keys(), "the version before knows neither"


def test_a_generation_of_sealed_members_is_accepted():
    host = with_key()
    news = generation()
    host.order("proposed", dataclasses.replace(news, members=[*map(sealed, news.members)]))
    assert host.core.accepted is not None
    assert host.notes == []


FIELDS = ("host", "incarnation", "address", "store", "token", "seal")


@pytest.mark.parametrize("field", FIELDS)
def test_one_field_of_a_member_that_nobody_sealed_refuses_all(field):
    host = with_key()
    members = [*map(sealed, generation().members)]
    changed = {"address": "6.6.6.6:6", "store": "6.6.6.6:7"}.get(field, "forged")
    members[2] = dataclasses.replace(members[2], **{field: changed})
    host.order("proposed", generation(members=members))
    assert host.core.accepted is None
    assert host.core.refused_orders == 1
    assert "no seal" in host.notes[-1]


def test_a_seal_of_another_job_or_key_is_none():
    for other in (JobKey("bert", b"k" * 32), JobKey("gpt", b"x" * 32)):
        host = with_key()
        members = [*map(sealed, generation().members)]
        members[1] = sealed(members[1], other)
        host.order("proposed", generation(members=members))
        assert "no seal" in host.notes[-1]


def test_the_store_is_a_members():
    host = with_key()
    members = [*map(sealed, generation().members)]
    host.order("proposed", generation(members=members, store="6.6.6.6:6"))
    assert "is no member's" in host.notes[-1]


def test_a_fabric_run_without_a_key_takes_what_it_took():
    host = Host()
    host.join(*host.alive)
    host.order("proposed", generation())
    assert host.core.accepted is not None


def test_a_key_is_read_from_a_file_of_its_user_or_from_a_pipe(tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_bytes(b"a" * 16 + b"\n")
    file.chmod(0o600)
    assert read_key("gpt", str(file)).id == JobKey("gpt", b"a" * 16).id
    reading, writing = os.pipe()
    os.write(writing, b"a" * 16)
    os.close(writing)
    assert read_key("gpt", f"/dev/fd/{reading}").id == JobKey("gpt", b"a" * 16).id
    os.close(reading)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a" * 16)))
    assert read_key("gpt", "-").id == JobKey("gpt", b"a" * 16).id


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [(b"short", 0o600, "16 to 4096 bytes"), (b"x" * 5000, 0o600, "16 to 4096"),
     (b"x" * 32, 0o640, "others may read it"), (b" " * 40, 0o600, "16 to 4096")],
)  # fmt: skip
def test_a_file_that_is_no_key_is_refused(tmp_path, content, mode, says):
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(KeyFileError, match=says):
        read_key("gpt", str(file))


def test_what_is_no_file_is_refused(tmp_path):
    for path, says in ((tmp_path / "none", "No such file"), (tmp_path, "directory"),
                       ("/dev/zero", "no regular file")):  # fmt: skip
        with pytest.raises(KeyFileError, match=re.escape(str(path)) + ".*" + says):
            read_key("gpt", str(path))
