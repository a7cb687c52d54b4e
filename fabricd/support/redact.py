"""Takes secrets out of texts and JSON before they leave a host. Pure.

Three nets: values known to be secret (the probe keys), shapes that only secrets have (long
hexadecimal and base64 runs, private keys, password hashes, well-known tokens, users in URLs), and
names that say so, wherever a value may follow a name: ``password = …``, ``"token": …``, the same in
a JSON text within a JSON text, ``--secret …``, ``<passwd>…``, a block of YAML, a cell of a table. A
secret without any of these, a bare word in somebody's sentence, cannot be told from other words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

REMOVED = "[removed]"
_MIN_SECRET = 6

_WORDS = (
    r"(?:passw(?:or)?d|passphrase|passwd|[_-]pass(?![a-z])|pwd|secret|token|credential|authorization|"
    r"bearer|cookie|psk|keytab|session[_-]?id|connection[_-]?string|pin[_-]?code|snmp[_-]?community|"
    r"key[_-]?material|(?:api|access|private|probe|auth|encryption|signing|license|ssh|shared|master|"
    r"wrapping|hmac|symmetric|storage|account|job)[_-]?key)"
)
# A name that goes on like this is where a secret lies, or how many there were, not the secret.
# PWD is a shell's directory.
_HARMLESS = re.compile(
    r"(?:_|-)(?:file|path|dir|name|total|count|seconds|bytes)$|(?-i:^(?:OLD)?PWD$)", re.IGNORECASE
)
_NAME = rf"[\w.-]{{0,64}}{_WORDS}[\w.-]{{0,64}}"
_QUOTED = (
    r"(?P<escape>\\+)\".*?(?:(?<!\\)(?P=escape)\"|\Z)|\"\"\".*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)|"
    r"\"(?:\\.|[^\"\\\n])*\"?|'[^'\n]*'?"
)
_PAIR = re.compile(
    rf"(?P<name>{_NAME})(?P<after>\\*[\"']?)"
    rf"(?P<sep>(?:[ \t]+(?:is|was)\b)?\s*[:=]>?[ \t]*|[ \t]+(?:is|was)[ \t]+)"
    rf"(?P<value>{_QUOTED}|[^\n]*)",
    re.IGNORECASE | re.DOTALL,
)
_FLAG = re.compile(
    rf"(?P<name>(?<![\w-])--?{_NAME})(?P<sep>[ \t\0]+)(?P<value>{_QUOTED}|[^\s\0]+)", re.IGNORECASE
)
_ELEMENT = re.compile(rf"(?P<head><(?P<name>{_NAME})(?:\s[^>]*)?>)(?P<value>[^<]+)", re.IGNORECASE)
_CELL = re.compile(
    rf"(?P<head>[|│┃][ \t]*(?P<name>{_NAME})[ \t]*[|│┃])(?P<value>[^|│┃\n]+)", re.IGNORECASE
)
_BLOCK = re.compile(
    rf"^(?P<head>[ \t-]*)(?P<name>{_NAME})[\"']?[ \t]*:[ \t]*[|>][+-]?[0-9]?[+-]?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_SHAPES = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [^\n]*|\Z)", re.DOTALL),
    re.compile(r"(?<![0-9A-Za-z])[0-9A-Fa-f]{48,}(?![0-9A-Za-z])"),
    re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}[: ]){31,}[0-9A-Fa-f]{2}"),
    re.compile(r"(?<![0-9A-Za-z+/_-])[0-9A-Za-z+/_-]{43}=(?!=)"),
    re.compile(
        r"\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|sha1|scrypt|argon2(?:id|i|d)|pbkdf2[\w-]*)\$[\w./,=$+-]{8,}"
    ),
    re.compile(r"\b(?:Bearer|Basic)\s+[\w.~+/=-][^\s\"'<>\0]{5,}", re.IGNORECASE),
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|xox[abprs]-|sk-)[\w-]{16,}"),
    re.compile(r"\bAKIA[0-9A-Z]{12,}\b"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
)
_USER_IN_URL = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+@", re.IGNORECASE)


class Redactor:
    """Redacts; remembers how often."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Args: ``secrets`` are removed wherever they stand; short ones are passed over."""
        known = sorted({s for s in secrets if len(s) >= _MIN_SECRET}, key=len, reverse=True)
        self.count = 0
        self._known = [re.compile(re.escape(s), re.IGNORECASE) for s in known]

    def text(self, text: str) -> str:
        """The text with `REMOVED` where secrets were."""
        for pattern in (*self._known, *_SHAPES):
            text, found = pattern.subn(REMOVED, text)
            self.count += found
        text, found = _USER_IN_URL.subn(lambda m: f"{m['scheme']}{REMOVED}@", text)
        self.count += found
        text = _CELL.sub(self._inside, _ELEMENT.sub(self._inside, self._blocks(text)))
        return _PAIR.sub(self._pair, _FLAG.sub(self._flag, text))

    def _blocks(self, text: str) -> str:
        """YAML's blocks: all lines that are further in than their name."""
        at, out = 0, []
        while match := _BLOCK.search(text, at):
            begin = end = match.end()
            while line := re.compile(r"\n(?:[ \t]*(?=\n)|([ \t]+)[^\n]*)").match(text, end):
                if line[1] is not None and len(line[1]) <= len(match["head"]):
                    break
                end = line.end()
            out.append(text[at:begin])
            if end > begin and not _HARMLESS.search(match["name"]):
                self.count += 1
                out.append(f"\n{' ' * len(match['head'])}  {REMOVED}")
            else:
                out.append(text[begin:end])
            at = end
        return "".join([*out, text[at:]])

    def _inside(self, match: re.Match[str]) -> str:
        if _HARMLESS.search(match["name"]) or not match["value"].strip():
            return match[0]
        self.count += 1
        return match["head"] + REMOVED

    def document(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """The same for JSON: names decide over what they hold."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.document(item) for item in value]
        if not isinstance(value, dict):
            return value
        out: dict[str, Any] = {}
        for key, item in value.items():
            if names_a_secret(str(key)) and not isinstance(item, dict | list | bool | None):
                self.count += 1
                out[self.text(str(key))] = REMOVED
            else:
                out[self.text(str(key))] = self.document(item)
        return out

    def _flag(self, match: re.Match[str]) -> str:
        if _HARMLESS.search(match["name"]):
            return match[0]
        self.count += 1
        return f"{match['name']}{match['sep']}{REMOVED}"

    def _pair(self, match: re.Match[str]) -> str:
        value: str = match["value"]
        head = match["name"] + match["after"] + match["sep"]
        if _HARMLESS.search(match["name"]) or not value.strip():
            return head + self._rest(value)
        self.count += 1
        if match["escape"] is not None:
            quote = match["escape"] + '"'
            return head + quote + REMOVED + quote
        if value[0] in "\"'":
            return head + value[0] + REMOVED + value[0]
        if match["sep"].strip() == match["sep"] and not match["after"]:  # name=value: one word
            word = re.match(r"[^\s&;\0]+", value)
            end = word.end() if word else len(value)
            return head + REMOVED + self._rest(value[end:])
        return head + REMOVED

    def _rest(self, text: str) -> str:
        """What follows on the line may hold another."""
        return _PAIR.sub(self._pair, text)


def names_a_secret(name: str) -> bool:
    """Whether a key's name says that its value is secret."""
    return bool(re.search(_WORDS, name, re.IGNORECASE)) and not _HARMLESS.search(name)
