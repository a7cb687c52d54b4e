"""A process asks its agent: a real socket, and an agent that answers late or wrongly."""

import socket
import threading

import pytest

from fabric_train.messages.link import AgentLink, AgentLostError
from fabric_train.messages.process import NewestAnswer, NewestRequest, Stored, encode


@pytest.fixture
def agent(tmp_path):
    """The agent's end of the connection, and the process's link."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()
        link = AgentLink(str(tmp_path / "agent.sock"), lambda _assignment: None)
        end, _ = listener.accept()
        with end:
            yield end, link
            link.close()


def say_when_asked(end, *messages):
    def say():
        end.recv(1 << 16)
        for message in messages:
            end.sendall(encode(message))

    thread = threading.Thread(target=say)
    thread.start()
    return thread


def test_an_answer_that_comes_too_late_is_not_taken_for_one_to_the_next_question(agent):
    end, link = agent
    with pytest.raises(AgentLostError, match=r"not answered within 0.01 s"):
        link.ask(NewestRequest(1, 0), 0.01)
    end.recv(1 << 16)
    thread = say_when_asked(end, NewestAnswer(1, 5), NewestAnswer(2, 6, "another"))
    assert link.ask(NewestRequest(2, 0), 60) == NewestAnswer(2, 6, "another")
    thread.join()


def test_a_state_is_stored_when_its_own_number_is_confirmed(agent):
    """The state of a step may be sent twice, and other questions may be asked meanwhile."""
    end, link = agent
    assert (link.store(0, 8, b"early"), link.store(0, 8, b"changed")) == (1, 2)
    thread = say_when_asked(end, NewestAnswer(1, 6), Stored(8, 1))
    link.wait_stored(1)
    thread.join()
    thread = say_when_asked(end, Stored(8, 2), NewestAnswer(3, 6))
    assert link.ask(NewestRequest(3, 0), 60) == NewestAnswer(3, 6)
    link.wait_stored(2)
    thread.join()
