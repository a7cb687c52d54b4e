"""Certificates of a site's broker: one authority, server and clients (X.509, ECDSA P-256).

A client's common name is its user name at the broker, by which the access list goes. So a name is
given to one role only, and ``issued.json`` remembers to which. Clients' keys are handed out and not
kept, or never seen here at all: a client may send a request for its certificate (CSR, RFC 2986).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from compute.mosquitto import KEEPER
from telemetry.messages.topics import DEFAULT_PREFIX
from telemetry.service import durable

Role = Literal["host", "compute", "operator", "events", "probe"]
FURTHER: tuple[Role, ...] = ("events", "probe")
"""A fabric-compute's further connections. A broker knows a client by its certificate, and has one
connection for each: so they are clients of their own, ``NAME.events`` and ``NAME.probe``."""
AUTHORITY = "fabricd broker authority"
AUTHORITY_DAYS, SERVER_DAYS, CLIENT_DAYS = 3650, 825, 825
CLOCK_SKEW = timedelta(minutes=5)
MOMENT = timedelta(minutes=1)
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?\Z")
"""As names in topics, but at most 64 characters: that is the limit of a common name (RFC 5280)."""
MAX_BYTES = 1 << 20


class CertificateError(Exception):
    """Nothing was issued. The text says why."""


PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey
RSA_BITS = 2048
"""Of a client's own key, at least."""


@dataclass(frozen=True)
class Pair:
    """A certificate that was issued, as PEM; ``key`` is "" where the client has it."""

    name: str
    certificate: str
    key: str

    def write(self, directory: Path) -> tuple[Path, Path | None]:
        """Write ``NAME.pem`` and ``NAME.key`` (0600); returns where they are."""
        certificate, key = directory / f"{self.name}.pem", directory / f"{self.name}.key"
        if self.key:
            durable.replace_text(key, self.key, 0o600)
        durable.replace_text(certificate, self.certificate)
        return certificate, key if self.key else None


@dataclass(frozen=True)
class Site:
    """What the broker's files are made of, besides certificates."""

    names: tuple[str, ...] = ()
    """Names and addresses of the broker."""
    prefix: str = DEFAULT_PREFIX


@dataclass(frozen=True)
class Issued:
    """A certificate of this authority. ``serial``: hexadecimal."""

    name: str
    role: str
    serial: str
    revoked: bool = False


class Authority:
    """The authority whose files lie in ``directory``, which the broker's user cannot read.

    ``ca.pem`` and ``crl.pem`` are for everybody, by copies. ``ca.key`` never leaves the directory.
    """

    def __init__(self, directory: Path) -> None:
        """Open it, or make it where there is none. Raises ``CertificateError`` and ``OSError``."""
        self.directory = directory
        self.certificate_file = directory / "ca.pem"
        self.revocations_file = directory / "crl.pem"
        self._issued_file = directory / "issued.json"
        self._site_file = directory / "site.json"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key_file = directory / "ca.key"
        if not key_file.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            durable.replace_text(self.certificate_file, _pem(_self_signed(key)))
            durable.replace_text(key_file, _key_pem(key), 0o600)
        self._key = _load_key(key_file)
        self._certificate = _load_certificate(self.certificate_file)
        if not self.revocations_file.exists():
            self._write_revocations()

    @property
    def issued(self) -> list[Issued]:
        """All clients' certificates. Raises ``CertificateError`` for a file that makes no sense."""
        try:
            content = durable.read(self._issued_file, MAX_BYTES)
            rows = json.loads(content) if content is not None else []
            return [Issued(**row) for row in rows]
        except (ValueError, TypeError) as error:
            raise CertificateError(f"{self._issued_file}: {error}") from None

    @property
    def site(self) -> Site:
        """As ``remember`` had it last. Raises ``CertificateError``: the file makes no sense."""
        try:
            content = durable.read(self._site_file, MAX_BYTES)
            row = json.loads(content) if content is not None else {}
            return Site(
                tuple(map(str, row.get("names", ()))), str(row.get("prefix", DEFAULT_PREFIX))
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise CertificateError(f"{self._site_file}: {error}") from None

    def remember(self, site: Site) -> None:
        """Have the next ``site`` be this one."""
        durable.replace_text(self._site_file, json.dumps(site.__dict__, indent=1) + "\n", 0o600)

    def server(self, names: Sequence[str]) -> Pair:
        """Certificate and key of the broker, for these DNS names and IP addresses.

        Made anew each time: a change of names needs no other step.
        """
        if not names:
            raise CertificateError("a server needs a name or an address")
        key = ec.generate_private_key(ec.SECP256R1())
        lasts = timedelta(days=SERVER_DAYS)
        made = self._make(names[0][:64], key.public_key(), lasts, server_names=names)
        return Pair("server", _pem(made), _key_pem(key))

    def client(self, name: str, role: Role, request: bytes | None = None) -> Pair:
        """A certificate of a client, with a key that is kept nowhere else.

        Args:
            name: of the client.
            role: what it may do.
            request: a CSR as PEM, for the client's own key.

        Raises:
            CertificateError: no name of a client, the name has another role, or no such request.
        """
        self._check(name, role)
        if request is not None:
            public, key_text = _requested(request, name), ""
        else:
            key = ec.generate_private_key(ec.SECP256R1())
            public, key_text = key.public_key(), _key_pem(key)
        made = self._make(name, public, timedelta(days=CLIENT_DAYS))
        self._save([*self.issued, Issued(name, role, f"{made.serial_number:x}")])
        return Pair(name, _pem(made), key_text)

    def compute(self, name: str) -> list[Pair]:
        """A certificate for each connection of a fabric-compute, the main one first.

        Raises ``CertificateError``, as ``client``, and where nothing was issued then.
        """
        names: list[tuple[str, Role]] = [(name, "compute")]
        names += [(f"{name}.{purpose}", purpose) for purpose in FURTHER]
        for one, role in names:
            self._check(one, role)
        return [self.client(one, role) for one, role in names]

    def keeper(self) -> Pair:
        """Of the client that keeps hosts to their shares. Made anew each time, as the server's."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._make(KEEPER, key.public_key(), timedelta(days=SERVER_DAYS))
        return Pair("keeper", _pem(made), _key_pem(key))

    def for_a_moment(self, name: str) -> Pair:
        """A certificate of a client for `MOMENT`, which is not in the register.

        Who has it takes the place of that client at the broker: for `compute.expel` alone.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        return Pair(name, _pem(self._make(name, key.public_key(), MOMENT)), _key_pem(key))

    def revoke(self, name: str) -> int:
        """Revoke all certificates of a client; returns how many. The broker reads ``crl.pem``.

        Those of a fabric-compute's further connections go with it.
        """
        issued = self.issued
        names = {name}
        if any(one.name == name and one.role == "compute" for one in issued):
            names |= {f"{name}.{purpose}" for purpose in FURTHER}
        hit = [one for one in issued if one.name in names and not one.revoked]
        if not hit:
            raise CertificateError(f"{name} has no certificate that is valid")
        self._save(
            [Issued(one.name, one.role, one.serial, True) if one in hit else one for one in issued]
        )
        self._write_revocations()
        return len(hit)

    def names(self, role: Role) -> list[str]:
        """Clients of a role with a certificate that is not revoked, sorted."""
        return sorted({one.name for one in self.issued if one.role == role and not one.revoked})

    @property
    def revoked(self) -> list[str]:
        """Clients that had certificates, and have none that is valid, sorted."""
        valid = {one.name for one in self.issued if not one.revoked}
        return sorted({one.name for one in self.issued} - valid)

    # -- making -------------------------------------------------------------------------------

    def _make(
        self,
        name: str,
        key: PublicKey,
        lasts: timedelta,
        *,
        server_names: Sequence[str] = (),
    ) -> x509.Certificate:
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server_names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _builder(name, self._certificate.subject, key, lasts)
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if server_names:
            alternatives = x509.SubjectAlternativeName([_general(one) for one in server_names])
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _check(self, name: str, role: Role) -> None:
        """Raises ``CertificateError``: no name of a client, or the name has another role."""
        if NAME.match(name) is None:
            raise CertificateError(
                f'"{name[:80]}" is no name of a client: 1 to 64 letters, digits, ".", "-" and "_"'
            )
        if name == KEEPER:
            raise CertificateError(f"{name} is a client of the broker's own")
        other = next((x.role for x in self.issued if x.name == name and x.role != role), None)
        if other is not None:
            raise CertificateError(f"{name} is the name of a client with the role {other}")

    def _save(self, issued: list[Issued]) -> None:
        rows: list[dict[str, Any]] = [one.__dict__ for one in issued]
        durable.replace_text(self._issued_file, json.dumps(rows, indent=1) + "\n")

    def _write_revocations(self) -> None:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - CLOCK_SKEW)
            .next_update(now + timedelta(days=AUTHORITY_DAYS))
        )
        for one in self.issued:
            if one.revoked:
                revoked = x509.RevokedCertificateBuilder().serial_number(int(one.serial, 16))
                builder = builder.add_revoked_certificate(revoked.revocation_date(now).build())
        signed = builder.sign(self._key, hashes.SHA256())
        text = signed.public_bytes(serialization.Encoding.PEM).decode()
        durable.replace_text(self.revocations_file, text)


def _builder(
    name: str, issuer: x509.Name, key: PublicKey, lasts: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lasts)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    lasts = timedelta(days=AUTHORITY_DAYS)
    builder = _builder(AUTHORITY, _name(AUTHORITY), key.public_key(), lasts)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(authority=True), critical=True)
    return builder.sign(key, hashes.SHA256())


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _requested(request: bytes, name: str) -> PublicKey:
    """The key for which a certificate of ``name`` is asked. Raises ``CertificateError``."""
    try:
        asked = x509.load_pem_x509_csr(request)
        valid = asked.is_signature_valid
        key = asked.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"no request for a certificate (PEM): {error}") from None
    names = [str(one.value) for one in asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not valid or names != [name]:
        raise CertificateError(
            f"the request is of {names}, not of {name}, or not signed by its key"
        )
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < RSA_BITS:
        raise CertificateError(f"an RSA key of {key.key_size} bits, at least {RSA_BITS}")
    if not isinstance(key, PublicKey):
        raise CertificateError("a key that is none of EC, RSA, Ed25519")
    return key


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(durable.require(path, MAX_BYTES), None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"{path}: no private key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path}: not a key of an elliptic curve")
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(durable.require(path, MAX_BYTES))
    except ValueError as error:
        raise CertificateError(f"{path}: no certificate: {error}") from None
