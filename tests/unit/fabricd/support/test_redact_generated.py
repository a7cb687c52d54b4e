"""Generated secrets under generated names, in each syntax that a bundle's files may have."""

import json
import random
import string

import pytest

from fabricd.support.redact import Redactor

NAMES = [
    "password", "passwd", "DB_PASSWORD", "mysql_pwd", "db_pass", "secret", "client_secret",
    "clientSecret", "SECRET_KEY", "token", "accessToken", "refresh_token", "API_KEY", "apikey",
    "x-api-key", "aws_secret_access_key", "private_key", "privateKey", "passphrase", "credential",
    "credentials", "auth_token", "psk", "wifi_psk", "shared_secret", "encryption_key",
    "signing_key", "session_token", "sessionid", "cookie", "Set-Cookie", "bearer", "sas_token",
    "connection_string", "webhook_secret", "license_key", "key_material", "pin_code", "otp_secret",
    "kerberos_keytab", "ssh_key", "snmp_community", "storage_account_key", "job_key",
]  # fmt: skip
PLAIN = string.ascii_letters + string.digits
ALPHABETS = (PLAIN, PLAIN + "!@#%^*()-_+.,:/~", string.hexdigits)


def plain(secret):
    return "".join(one for one in secret if one in PLAIN)


# Syntax → (what is written, what of the secret is in it, what has to stay).
SYNTAXES = {
    "env": lambda n, s: (f"A=1\n{n.upper().replace('-', '_')}={s}\nB=2", s, ["A=1", "B=2"]),
    "export": lambda n, s: (f"export {n.replace('-', '_')}='{s}'; next", s, ["; next"]),
    "toml": lambda n, s: (f"[a]\n{n} = {json.dumps(s)}\nb = 1\n", s, ["[a]", "b = 1"]),
    "ini": lambda n, s: (f"[a]\n{n} = {s}\nb = 1\n", s, ["[a]", "b = 1"]),
    "json": lambda n, s: (json.dumps({"a": [{"b": 1, n: s, "c": "x"}]}), s, ['"b": 1', '"c": "x"']),
    "json in json": lambda n, s: (
        json.dumps({"a": json.dumps({"b": 1, n: s, "c": 2})}), s, ['\\"b\\": 1', '\\"c\\": 2'],
    ),
    "json in json in json": lambda n, s: (
        json.dumps({"a": json.dumps({"d": json.dumps({n: s, "c": 2})})}), s, ["c"],
    ),
    "python": lambda n, s: (repr({"x": 1, n: s, "y": 2}), s, ["'x': 1", "'y': 2"]),
    "yaml": lambda n, s: (f"a:\n  - {n}: {s}\n    b: 1\n", s, ["a:", "b: 1"]),
    "yaml block": lambda n, s: (f"a:\n  {n}: |\n    {s}\n\n    {s}\n  b: 1\n", s, ["a:", "  b: 1"]),
    "argv": lambda n, s: (f"prog --{n.replace('_', '-')} {s} --all", s, ["prog", "--all"]),
    "argv with =": lambda n, s: (f"/bin/prog --{n}={s} --all", s, ["/bin/prog", "--all"]),
    "argv in /proc": lambda n, s: (f"prog\0--{n}\0{s}\0--all\0", s, ["prog", "--all"]),
    "query": lambda n, s: (f"GET https://h/p?x=1&{n}={s}&y=2", s, ["x=1", "y=2"]),
    "url": lambda _, s: (f"postgres://user:{plain(s)}@db/x", plain(s), ["@db/x"]),
    "header": lambda n, s: (f"Host: h\r\n{n}: {s}\r\nAge: 1\r\n", s, ["Host: h", "Age: 1"]),
    "xml": lambda n, s: (f"<a><b>1</b><{n}>{s}</{n}></a>", s, ["<b>1</b>", "</a>"]),
    "logfmt": lambda n, s: (f'ts=1 {n}={json.dumps(s)} msg="done"', s, ["ts=1", 'msg="done"']),
    "table": lambda n, s: (f"| a | 1 |\n| {n} | {s} |\n", s, ["| a | 1 |"]),
    "shadow": lambda _, s: (
        f"root:$6${plain(s)[:8]}${(plain(s) * 9)[:86]}:19000:0:::", (plain(s) * 9)[:86], ["root:"],
    ),
    "pem": lambda _, s: (
        f"x\n-----BEGIN EC PRIVATE KEY-----\n{s}\n-----END EC PRIVATE KEY-----\ny", s, ["x", "y"],
    ),
    "bearer": lambda _, s: (f"GET /\nAuthorization: Bearer {plain(s)}", plain(s), ["GET /"]),
}  # fmt: skip


def secret_of(rng):
    alphabet = rng.choice(ALPHABETS)
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(8, 40))) + rng.choice(PLAIN)


def check(syntax, seed, count):
    rng = random.Random(f"{syntax} {seed}")
    for _ in range(count):
        text, secret, stays = SYNTAXES[syntax](rng.choice(NAMES), secret_of(rng))
        assert secret in text
        if len(secret) < 6:
            continue  # a plain one out of signs
        redacted = Redactor().text(text)
        third = len(secret) // 3
        for part in (secret, secret[: 2 * third], secret[third:]):
            assert part not in redacted, (text, redacted)
        for kept in stays:
            assert kept in redacted, (text, redacted)
        assert Redactor().text(redacted).count("[removed]") == redacted.count("[removed]")


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_no_secret_is_left_and_all_else_is(syntax):
    check(syntax, 1, 60)


@pytest.mark.nightly
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_no_secret_of_a_hundred_thousand_is_left(syntax):
    check(syntax, 2, 100_000 // len(SYNTAXES))


KEPT = """\
{"status": "up", "rtt_us": 12.5, "key_file": "/etc/fabricd/probe.key", "peers": 31}
PWD=/var/lib/fabricd
fabricd_job_tokens_total 5
mlx5_core 0000:3b:00.0: firmware version: 22.35.1012
link rail0: carrier down; 17 flaps, last 2026-11-01T10:00:00Z
compass: 3, bypass: 4, keyboard: us, monkey: 1, authority: ca.pem
guid 0x98039b03001f2a3c lid 12 sm_lid 1
| link | state |
| rail0 | down |
a: |
  two lines
  of text
<state>up</state>
--link rail0 --since 2h
pbkdf2 and $HOME and $5 cost nothing
"""


def test_what_an_engineer_needs_stays():
    redactor = Redactor()
    assert redactor.text(KEPT) == KEPT
    assert redactor.count == 0
