"""Secrets: found by value, by shape and by name; what is none stays."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.support.redact import REMOVED, Redactor, names_a_secret

# The same in every process: it names test cases, and two processes share these out.
KEY = random.Random(6).randbytes(32).hex()
CANARY = "kanari3nvogel"


@pytest.mark.parametrize(
    "text",
    [
        f"password = {CANARY}",
        f'password = "{CANARY}"',
        f"password: {CANARY} and more {CANARY}",
        f"# the db_password is: {CANARY}",
        f'{{"password":"{CANARY}","x":1}}',
        f"{{'api_key': '{CANARY}'}}",
        f'token = """\n{CANARY}\n"""\nx = 1',
        f"AWS_SECRET_ACCESS_KEY={CANARY} x=1",
        f"cmd --auth-token {CANARY} --x",
        f"cmd --password={CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"Authorization: Basic {CANARY}==",
        f"mqtts://user:{CANARY}@broker:8883/x",
        f"https://{CANARY}@host/",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
        f"key_file = '/x' password = '{CANARY}'",
        f"token_file=/x token={CANARY}",
        f"my.token.value = {CANARY}",
        f"passphrase: correct horse {CANARY}",
        f'secret => "{CANARY}"',
        f'"secret" : "a\\"{CANARY}"',
        f"PASSWD='{CANARY}",
    ],
)
def test_by_name_and_shape(text):
    assert CANARY not in Redactor().text(text)


@pytest.mark.parametrize(
    "secret",
    [KEY, KEY.upper(), ":".join(KEY[i : i + 2] for i in range(0, 64, 2)),
     "ghp_" + "a" * 36, "glpat-" + "b" * 20, "hf_" + "c" * 30, "AKIA" + "D" * 16,
     "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_", "sk-" + "e" * 40,
     "q3bXkz0J8m1w2F5h7K9pLr4tVyZaBcDeFgHiJkLmNo8="],
)  # fmt: skip
def test_by_shape_alone(secret):
    for text in (secret, f"x {secret} y", f"[{secret}]", f'"{secret}",'):
        out = Redactor().text(text)
        assert secret not in out
        assert REMOVED in out


def test_known_values_anywhere_in_any_case():
    redactor = Redactor(["Sesam0ffn", "abc"])
    assert redactor.text("xSESAM0FFNy abc") == f"x{REMOVED}y abc", "three letters are no secret"
    assert redactor.count == 1


@pytest.mark.parametrize(
    "text",
    ['key_file = "/etc/fabricd/probe.key"', "refused auth 3", "author: somebody",
     'fabricd_prober_refused_packets_total{reason="auth"} 3.0', "token_count=7",
     "boot 8b1a9953-c461-4f8d-9a1e-7c1c0d0e6f11", "sha 1f2e3d4c5b6a7988", "fd00:77:1::1",
     "80:00:02:08:fe:80:00:00:00:00:00:00:e4:1d:2d:03:00:4b:8c:11", "https://host/path@x",
     "0123456789abcdef" * 2],
)  # fmt: skip
def test_what_is_no_secret_stays(text):
    assert Redactor().text(text) == text


def test_json_by_its_names_at_any_depth():
    document = {
        "a": [{"password": CANARY, "n": 1, "token": 12345678}],
        "reason": f"new password={CANARY}",
        "credentials": {"user": "x", "secret": CANARY},
        f"x secret={CANARY}": 1,
        "key_file": "/etc/probe.key",
    }
    out = Redactor([CANARY.upper()]).document(document)
    assert CANARY not in json.dumps(out)
    assert out["a"][0] == {"password": REMOVED, "n": 1, "token": REMOVED}
    assert out["key_file"] == "/etc/probe.key"


def test_names():
    assert names_a_secret("probe_key")
    assert names_a_secret("HF_TOKEN")
    assert not names_a_secret("probe_key_file")
    assert not names_a_secret("keyboard")


@given(st.text(max_size=300))
def test_any_text_ends_and_is_stable(text):
    once = Redactor().text(text)
    assert KEY not in Redactor([KEY]).text(once + KEY)
    assert isinstance(once, str)


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_known_secret_never_stays(before, after):
    assert CANARY not in Redactor([CANARY]).text(before + CANARY + after)
