"""Ed25519 keys of the ledger's heads: a private one in a file of mode 0600, a public one beside it.

Ed25519 and not HMAC: whoever verifies a head must not be able to make one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from telemetry.service import durable

MAX_BYTES = 4096


class KeyFileError(Exception):
    """A file holds no usable key. The text names the file."""


@dataclass(frozen=True)
class PublicKey:
    """Verifies heads."""

    key: Ed25519PublicKey

    @property
    def key_id(self) -> str:
        """16 hexadecimal digits that name the key."""
        return hashlib.sha256(_raw(self.key)).hexdigest()[:16]

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether ``signature`` is this key's of ``message``."""
        try:
            self.key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def pem(self) -> str:
        """The key as PEM (SubjectPublicKeyInfo)."""
        encoded = self.key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return encoded.decode()


@dataclass(frozen=True)
class PrivateKey:
    """Signs heads."""

    key: Ed25519PrivateKey

    @property
    def public(self) -> PublicKey:
        """Its public half."""
        return PublicKey(self.key.public_key())

    @property
    def key_id(self) -> str:
        """16 hexadecimal digits that name the key."""
        return self.public.key_id

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``, 64 bytes."""
        return self.key.sign(message)


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def public_file(private: Path) -> Path:
    """Where the public half of a private key lies: ``ledger.key`` and ``ledger.pub``."""
    return private.with_suffix(".pub")


def load_or_create(path: Path) -> PrivateKey:
    """The private key of ``path``; makes one where there is none.

    Raises:
        KeyFileError: the file holds no Ed25519 key.
        OSError: it cannot be read or made.
    """
    try:
        content = durable.read(path, MAX_BYTES)
    except ValueError as error:
        raise KeyFileError(f"{path}: {error}") from None
    if content is None:
        key = PrivateKey(Ed25519PrivateKey.generate())
        encoded = key.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )  # fmt: skip
        durable.replace_text(path, encoded.decode(), 0o600)
    else:
        try:
            found = serialization.load_pem_private_key(content, None)
        except (ValueError, TypeError) as error:
            raise KeyFileError(f"{path}: no private key: {error}") from None
        if not isinstance(found, Ed25519PrivateKey):
            raise KeyFileError(f"{path}: not an Ed25519 key")
        key = PrivateKey(found)
    pem, beside = key.public.pem(), public_file(path)
    try:
        same = durable.read(beside, MAX_BYTES) == pem.encode()
    except ValueError:
        same = False
    if not same:
        durable.replace_text(beside, pem)
    return key


def load_public(path: Path) -> PublicKey:
    """A public key. Raises ``KeyFileError``; ``OSError`` when the file cannot be read."""
    content = durable.require(path, MAX_BYTES)
    try:
        key = serialization.load_pem_public_key(content)
    except ValueError as error:
        raise KeyFileError(f"{path}: no public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path}: not an Ed25519 key")
    return PublicKey(key)
