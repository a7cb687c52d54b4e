"""The connection of a process to its agent: requests of the training thread, news by a thread.

The reading thread never needs the training thread, and calls ``on_assignment`` at once: that ends
the collectives of the last generation while the training thread waits for them.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable

from fabric_train.messages.keys import KeyAnswer, KeyRequest
from fabric_train.messages.process import (
    Assignment,
    Decoder,
    Hello,
    LocalState,
    LocalStateAnswer,
    LocalStateRequest,
    Message,
    MessageError,
    NewestAnswer,
    NewestRequest,
    ProtectionAnswer,
    ProtectionRequest,
    Refused,
    Release,
    Stored,
    Welcome,
    encode,
)
from fabric_train.messages.state_memory import KeptState, write

_ANSWERS: dict[type[Message], type[Message]] = {
    Hello: Welcome,
    LocalStateRequest: LocalStateAnswer,
    NewestRequest: NewestAnswer,
    ProtectionRequest: ProtectionAnswer,
}

_KEYS_S = 30.0  # for the agent itself, beside what a question waits for


class AgentLostError(Exception):
    """The agent is gone: there is nobody to form another generation."""


class RefusedError(Exception):
    """The agent does not take this process."""


class AgentLink:
    """One connected process. ``on_assignment`` runs on the reading thread."""

    def __init__(
        self,
        path: str,
        on_assignment: Callable[[Assignment], None],
        memory: int | None = None,
    ) -> None:
        """Connect. ``memory``: the descriptor of a ``state_memory`` of the agent."""
        self._on_assignment = on_assignment
        self._memory = memory
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._assignment: Assignment | None = None
        self._answers: list[Message] = []
        self._questions = itertools.count(1)
        self._asked_keys: dict[int, KeyAnswer | None] = {}
        self._sent_states = self._stored = 0  # number of the last one
        self._released = False
        self._end: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="fabric-agent", daemon=True)
        self._thread.start()

    @property
    def assignment(self) -> Assignment | None:
        """The newest one that has arrived."""
        return self._assignment

    @property
    def released(self) -> bool:
        """The job has ended well, so this process may end."""
        return self._released

    def send(self, message: Message) -> None:
        """Send without an answer. Raises ``AgentLostError``."""
        try:
            with self._sending:
                self._socket.sendall(encode(message))
        except OSError as error:
            raise self._reason() or AgentLostError(f"the agent is gone: {error}") from None

    def ask(self, message: Message, timeout_s: float | None = 60.0) -> Message:
        """Send, and return the answer; one question at a time. Raises ``AgentLostError``.

        ``timeout_s`` None: wait for as long as the agent lives. An answer that comes after that is
        not taken for one to a later question.
        """

        def answers() -> list[Message]:
            return [one for one in self._answers if _is_answer(one, message)]

        with self._changed:
            self._answers.clear()
        self.send(message)
        with self._changed:
            arrived = self._changed.wait_for(lambda: bool(answers() or self._end), timeout_s)
            if found := answers():
                return found[0]
            if not arrived:
                raise AgentLostError(f"the agent has not answered within {timeout_s:g} s")
        raise self._reason() or AgentLostError("the agent is gone")

    def call(self, request: KeyRequest) -> KeyAnswer:
        """Ask a store; from any thread, any number at once. Raises ``AgentLostError``."""
        number = request.question
        with self._changed:
            self._asked_keys[number] = None
        try:
            self.send(request)
            limit_s = request.timeout_s + _KEYS_S
            with self._changed:
                self._changed.wait_for(
                    lambda: self._asked_keys[number] is not None or self._end is not None, limit_s
                )
                answer, end = self._asked_keys[number], self._end
        finally:
            with self._changed:
                del self._asked_keys[number]
        if answer is None:
            raise end or AgentLostError(f"the agent has not answered within {limit_s:g} s")
        return answer

    def new_question(self) -> int:
        """A number for a `KeyRequest`."""
        return next(self._questions)

    def store(self, rank: int, step: int, body: bytes, *, late: bool = False) -> int:
        """Give a rank-local state to the agent, and return its number for ``wait_stored``.

        ``late``: of a step that has begun. That of the gate before stays until this one is whole.
        """
        self._sent_states += 1
        if self._memory is not None:
            write(self._memory, KeptState(rank, step, body), late=late)
            self._stored = self._sent_states
        else:
            self.send(LocalState(rank, step, body, self._sent_states))
        return self._sent_states

    @property
    def store_takes_time(self) -> bool:
        """A state is not off the process as soon as ``store`` returns."""
        return self._memory is None

    def wait_stored(self, number: int) -> None:
        """Return when the state of that number is off the process. Raises ``AgentLostError``.

        Without a limit: a job that is held for a spare may have no other host to store it at.
        """
        if self._stored < number:
            self.wait(lambda: self._stored >= number)

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until ``until`` holds; it is asked after each news. False: it does not hold yet."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not until():
                if self._end is not None:
                    raise self._end
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def newer_than(self, generation: int) -> bool:
        """An assignment past ``generation`` has arrived."""
        assignment = self._assignment
        return assignment is not None and assignment.generation > generation

    def notify(self) -> None:
        """Let ``wait`` ask its condition again; for other threads."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the connection; the reading thread ends with it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._socket.close()

    def _reason(self) -> Exception | None:
        with self._changed:
            return self._end

    def _read(self) -> None:
        decoder = Decoder()
        try:
            while data := self._socket.recv(1 << 16):
                for message in decoder.feed(data):
                    self._receive(message)
            end: Exception = AgentLostError("the agent closed the connection")
        except (OSError, MessageError, RefusedError) as error:
            end = error if isinstance(error, RefusedError) else AgentLostError(str(error))
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def _receive(self, message: Message) -> None:
        if isinstance(message, Refused):
            raise RefusedError(message.reason)
        if isinstance(message, Assignment):
            self._assignment = message
            self._on_assignment(message)
        with self._changed:
            if isinstance(message, Release):
                self._released = True
            elif isinstance(message, Stored):
                self._stored = max(self._stored, message.number)
            elif isinstance(message, KeyAnswer):
                if message.question in self._asked_keys:
                    self._asked_keys[message.question] = message
            elif isinstance(message, tuple(_ANSWERS.values())):
                self._answers.append(message)
            self._changed.notify_all()


def _is_answer(one: Message, message: Message) -> bool:
    if not isinstance(one, _ANSWERS[type(message)]):
        return False
    if isinstance(one, NewestAnswer) and isinstance(message, NewestRequest):
        return one.question == message.question
    return True
