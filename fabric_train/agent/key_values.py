"""The key-value store in which the ranks of a generation meet; its agent keeps it. Pure.

Who asks for a key that is not there yet is answered when it is, or when his patience ends. Keys
begin with their generation (``g12…/``), and are forgotten with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric_train.messages.keys import KeyAnswer, KeyRequest

MAX_BYTES = 256 << 20
"""Of all keys and values. 4,096 ranks that each say 1 KiB to all are 4 MiB."""
_COUNT_DIGITS = 20


@dataclass(frozen=True)
class Asker:
    """A process of this host, or the agent on another."""

    name: str
    is_process: bool


Answers = list[tuple[Asker, KeyAnswer]]


@dataclass(frozen=True)
class _Waiting:
    who: Asker
    request: KeyRequest
    until: float


class KeyValues:
    """Keys and values of the generations that are not over."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: list[_Waiting] = []
        self._bytes = 0

    def ask(self, who: Asker, request: KeyRequest, now: float) -> Answers:
        """The answers that ``request`` brings, to ``who`` and to those who have waited for it."""
        problem = _problem(request)
        if problem:
            return [(who, KeyAnswer(request.question, problem))]
        if request.call in ("get", "wait"):
            one = _Waiting(who, request, now + request.timeout_s)
            if self._has(request):
                return [(who, self._answer(request))]
            self._waiting.append(one)
            return self.expire(now)
        if request.call == "check":
            return [(who, KeyAnswer(request.question, count=int(self._has(request))))]
        return self._change(who, request)

    def expire(self, now: float) -> Answers:
        """To those whose patience has ended at ``now``."""
        over = [one for one in self._waiting if one.until <= now]
        self._waiting = [one for one in self._waiting if one.until > now]
        return [(one.who, self._missing(one.request)) for one in over]

    def forget_before(self, generation: int) -> Answers:
        """Generations before that one are over, and who still waits for them is told."""
        for key in [key for key in self._values if _generation(key) < generation]:
            self._bytes -= len(key) + len(self._values.pop(key))
        over = [one for one in self._waiting if _generation(one.request.keys[0]) < generation]
        self._waiting = [one for one in self._waiting if one not in over]
        text = f"generation {generation} has begun"
        return [(one.who, KeyAnswer(one.request.question, text)) for one in over]

    def forget_asker(self, who: Asker) -> None:
        """``who`` is gone."""
        self._waiting = [one for one in self._waiting if one.who != who]

    def _change(self, who: Asker, request: KeyRequest) -> Answers:
        (key,) = request.keys
        before, value, count = self._values.get(key), request.body, 0
        if request.call == "add":
            try:
                count = int(before or b"0") + request.amount
            except ValueError:
                return [(who, KeyAnswer(request.question, f"{key:.80} is no number"))]
            value = str(count).encode()
        added = len(value) - len(before) if before is not None else len(key) + len(value)
        if self._bytes + added > MAX_BYTES:
            text = f"the store of this job's generations is full: {MAX_BYTES >> 20} MiB"
            return [(who, KeyAnswer(request.question, text))]
        self._values[key] = value
        self._bytes += added
        answers: Answers = [(who, KeyAnswer(request.question, count=count))]
        served = [one for one in self._waiting if key in one.request.keys]
        for one in served:
            if self._has(one.request):
                self._waiting.remove(one)
                answers.append((one.who, self._answer(one.request)))
        return answers

    def _has(self, request: KeyRequest) -> bool:
        return all(key in self._values for key in request.keys)

    def _answer(self, request: KeyRequest) -> KeyAnswer:
        body = self._values[request.keys[0]] if request.call == "get" else b""
        return KeyAnswer(request.question, body=body)

    def _missing(self, request: KeyRequest) -> KeyAnswer:
        missing = [key for key in request.keys if key not in self._values]
        text = f"nobody has set {', '.join(missing):.200} within {request.timeout_s:g} s"
        return KeyAnswer(request.question, text)


def _problem(request: KeyRequest) -> str:
    """What is wrong with it; "": nothing."""
    if request.call not in ("set", "get", "wait", "check", "add"):
        return f"the store knows no {request.call!r:.40}"
    several = request.call in ("wait", "check")
    if not request.keys or (len(request.keys) > 1 and not several):
        return f"{request.call} of {len(request.keys)} keys"
    if not 0 <= request.timeout_s < float("inf"):
        return f"a time of {request.timeout_s} s"
    return ""


def _generation(key: str) -> int:
    """That of ``g12.…/…`` and ``g12/…``; others are of none that ever ends."""
    number = key.partition("/")[0].partition(".")[0].removeprefix("g")
    return int(number) if number.isdecimal() and len(number) < _COUNT_DIGITS else 1 << 62
