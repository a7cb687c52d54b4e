"""The ledger: records in a hash chain, and signed heads. Pure but for the signature.

An entry is one line of canonical JSON: keys sorted, no spaces, ASCII. Its hash is the SHA-256 of
``DOMAIN``, the hash of the entry before it and the line, so no entry can be changed, left out or
moved. A chain alone does not show that its end was cut off: a *head* (number and hash of the newest
entry, signed with Ed25519, RFC 8032) that was published earlier does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

DOMAIN = b"io.fabricd.ledger.v1\x00"
HEAD_DOMAIN = b"io.fabricd.ledger-head.v1\x00"
GENESIS = hashlib.sha256(DOMAIN).hexdigest()
"""Takes the place of the hash before entry 1."""
_HASH = re.compile(r"[0-9a-f]{64}\Z")


class Signer(Protocol):
    """A private key."""

    @property
    def key_id(self) -> str:
        """16 hexadecimal digits that name the key."""

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``."""


class Verifier(Protocol):
    """A public key."""

    @property
    def key_id(self) -> str:
        """16 hexadecimal digits that name the key."""

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether ``signature`` is this key's of ``message``."""


def canonical(value: Any) -> str:  # noqa: ANN401 - a JSON value
    """The one text of a JSON value. Raises ``ValueError`` for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Entry:
    """Entry ``number`` (from 1) as it is stored."""

    number: int
    line: str
    hash: str

    @property
    def record(self) -> dict[str, Any]:
        """``{"number", "previous", "kind", "fields", "time"}``. Raises ``ValueError``."""
        record = json.loads(self.line)
        if not isinstance(record, dict):
            raise ValueError("not an object")
        return record


def chain_hash(previous: str, line: str) -> str:
    """The hash of an entry after one with the hash ``previous``."""
    return hashlib.sha256(DOMAIN + bytes.fromhex(previous) + line.encode()).hexdigest()


def is_hash(value: object) -> bool:
    """Whether that is the text of a hash."""
    return isinstance(value, str) and _HASH.match(value) is not None


def entry_after(last: Entry | None, kind: str, fields: dict[str, Any], wall_s: float) -> Entry:
    """The entry that follows ``last``. ``wall_s``: seconds since 1970, for people only."""
    number, previous = (last.number + 1, last.hash) if last else (1, GENESIS)
    record = {
        "number": number,
        "previous": previous,
        "kind": kind,
        "fields": fields,
        "time": round(wall_s, 3),
    }
    line = canonical(record)
    return Entry(number, line, chain_hash(previous, line))


@dataclass(frozen=True)
class Head:
    """A signed statement: entry ``number`` of the ledger of ``owner`` has this ``hash``."""

    owner: str
    number: int
    hash: str
    time: float
    key_id: str
    signature: str

    @property
    def message(self) -> bytes:
        """What is signed."""
        said = [self.owner, self.number, self.hash, self.time, self.key_id]
        return HEAD_DOMAIN + canonical(said).encode()

    def to_json(self) -> str:
        """One line of JSON."""
        return canonical(self.__dict__)

    @classmethod
    def from_json(cls, text: str) -> Head:
        """The reverse of ``to_json``. Raises ``ValueError`` for anything else."""
        data = json.loads(text)
        wanted = {
            "owner": str, "number": int, "hash": str, "time": float, "key_id": str,
            "signature": str,
        }  # fmt: skip
        if not isinstance(data, dict) or data.keys() != wanted.keys():
            raise ValueError("no signed head")
        for name, kind in wanted.items():
            value = data[name]
            if isinstance(value, bool) or not (
                isinstance(value, kind) or (kind is float and isinstance(value, int))
            ):
                raise ValueError(f"no signed head: {name} is {value!r:.40}")
        return cls(**{**data, "time": float(data["time"])})


def sign_head(owner: str, last: Entry, wall_s: float, signer: Signer) -> Head:
    """A head for the newest entry."""
    unsigned = Head(owner, last.number, last.hash, round(wall_s, 3), signer.key_id, "")
    return Head(**{**unsigned.__dict__, "signature": signer.sign(unsigned.message).hex()})


@dataclass(frozen=True)
class Verification:
    """The result of ``verify``. ``wrong``: what does not fit, the first thing first."""

    entries: int
    heads: int
    wrong: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """All is right, and a signed head says how far the ledger goes at least."""
        return self.heads > 0 and not self.wrong


def verify(entries: Iterable[Entry], heads: Sequence[Head], key: Verifier | None) -> Verification:
    """Check the chain from its first entry on, and each head against it.

    ``heads``: those that lie beside the ledger and those that were published earlier. Without
    ``key`` signatures are not checked. The check of the chain ends at the first wrong entry.
    """
    hashes = {0: GENESIS}
    wrong: list[str] = []
    count = 0
    for entry in entries:
        count += 1
        if why := _wrong_entry(entry, count, hashes[count - 1]):
            wrong.append(f"entry {count}: {why}")
            break
        hashes[count] = entry.hash
    for head in heads:
        if why := _wrong_head(head, hashes, key, broken=bool(wrong)):
            wrong.append(f"head of entry {head.number}: {why}")
    return Verification(count, len(heads), tuple(wrong))


def _wrong_entry(entry: Entry, number: int, previous: str) -> str:
    try:
        record = entry.record
    except (ValueError, RecursionError) as error:
        return f"no JSON object: {error}"
    if entry.number != number or record.get("number") != number:
        return f"its number is {record.get('number')!r:.40}: an entry is missing or moved"
    if record.get("previous") != previous:
        return "it does not follow the entry before it"
    if canonical(record) != entry.line:
        return "its text is not canonical"
    if chain_hash(previous, entry.line) != entry.hash:
        return "it was changed: its hash is another"
    return ""


def _wrong_head(head: Head, hashes: dict[int, str], key: Verifier | None, *, broken: bool) -> str:
    if key is not None:
        if head.key_id != key.key_id:
            return f"signed with key {head.key_id:.40}, not {key.key_id}"
        try:
            signature = bytes.fromhex(head.signature)
        except ValueError:
            return "its signature is no hexadecimal text"
        if not key.verifies(head.message, signature):
            return "its signature is wrong"
    if head.number not in hashes:
        last = len(hashes) - 1
        if broken and head.number > last:
            return ""  # The chain was not followed so far.
        return f"the ledger ends at entry {last}: its end was cut off"
    if hashes[head.number] != head.hash:
        return "the ledger has another entry of that number"
    return ""
