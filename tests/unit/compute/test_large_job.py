"""One job of 2,000 hosts with 8 ranks each: what is said of it fits, and a lost host is decided."""

import dataclasses
import json

import pytest

from compute.decide.decider import Decider
from compute.decide.effects import FenceIssued, JobState, Order
from compute.decide.policy import Policy
from fabric_train.host.job_socket import MAX_LINE as LINE_OF_FABRIC_RUN
from fabric_train.messages.documents import AgentDocument, JobOrder, ProcessState, parse, to_data
from fabricd.escalate.job_lines import MAX_LINE, Document, encode_line, parse_line
from fabricd.escalate.job_registry import SURE_BYTES
from telemetry.messages.documents import HostJob, HostObservations, HostStatus, SilentHost
from telemetry.messages.envelope import MAX_BYTES, Message, Sender, encode
from telemetry.messages.topics import Kind, Topic

HOSTS, RANKS = 2000, 8
NAMES = [f"gpu-{number:04}" for number in range(HOSTS)]
LIFE = {
    name: f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}" for number, name in enumerate(NAMES)
}


def document(name, accepted=None):
    number = accepted.number if accepted else 0
    processes = [
        ProcessState(
            f"{name}/{LIFE[name]}/p{rank}", "warm" if accepted else "joined", layout="L",
            software={"torch": "2.13.0"}, acknowledged=number, recovered=number, committed=number,
            step=number,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    return AgentDocument(
        "big", name, LIFE[name], HOSTS, 0, RANKS, "10.0.0.1:40000", "10.0.0.1:40001",
        LIFE[name] * 4, processes, accepted=accepted, running=number,
    )  # fmt: skip


class Site:
    def __init__(self):
        self.decider = Decider("c0", Policy())
        self.decider.set_mode("migrate", 0.0)
        self.now = 0.0

    def publish(self, accepted=None):
        for name in NAMES:
            news = HostJob(job="big", incarnation=LIFE[name])
            mine = document(name, accepted)
            self.decider.host_job(name, "big", news, self.now, document=mine)
        return self.decide()

    def decide(self):
        self.now += 1.0
        return self.decider.decide(self.now)


@pytest.fixture(scope="module")
def formed():
    site = Site()
    first = site.publish()
    [order] = [one for one in first if isinstance(one, Order) and one.host == NAMES[7]]
    generation = parse(JobOrder, order.order.jobs["big"]).generation
    second = site.publish(generation)
    return site, generation, [*first, *second]


def test_orders_and_states_fit_a_message(formed):
    _, generation, effects = formed
    assert len(generation.slots) == HOSTS * RANKS
    orders = [one for one in effects if isinstance(one, Order)]
    assert len(orders) == 2 * HOSTS
    message = Message(
        Topic(Kind.COMPUTE_ORDER, "c0", NAMES[7]), Sender("b", "i"), 1,
        orders[-1].order.model_dump(mode="json"),
    )  # fmt: skip
    assert len(encode(message)) < MAX_BYTES
    state = [one.state for one in effects if isinstance(one, JobState)][-1]
    assert state.phase == "running"
    topic = Topic(Kind.COMPUTE_JOB, "c0", "big")
    told = Message(topic, Sender("b", "i"), 1, state.model_dump(mode="json"))
    assert len(encode(told)) <= MAX_BYTES


def test_documents_and_orders_fit_a_line_of_the_job_socket(formed):
    _, generation, effects = formed
    assert MAX_LINE == LINE_OF_FABRIC_RUN
    mine = document(NAMES[7], generation)
    mine = dataclasses.replace(mine, hears=[one for one in NAMES if one != NAMES[7]])
    line = encode_line("document", document=to_data(mine))
    assert len(line) <= MAX_LINE
    read = parse_line(line)
    assert isinstance(read, Document)
    assert parse(AgentDocument, read.document) == mine
    assert read.memory < SURE_BYTES, "its user has room for it, whatever others take"
    order = next(one.order.jobs["big"] for one in effects if isinstance(one, Order))
    assert len(encode_line("order", compute="c0", order=order)) <= MAX_LINE
    envelope = HostJob(job="big", incarnation=LIFE[NAMES[7]], document=to_data(mine))
    topic = Topic(Kind.HOST_JOB, NAMES[7], "big")
    data = json.loads(envelope.model_dump_json())
    assert len(encode(Message(topic, Sender("b", "i"), 1, data))) < MAX_BYTES


def test_a_lost_host_is_fenced(formed):
    site, _, _ = formed
    lost, sender = NAMES[1234], Sender("b", "i")
    for name in NAMES[100:120]:
        said = HostObservations(
            silent=[SilentHost(host=lost, rails=8, rails_probed=8)], heard=NAMES[:20]
        )
        site.decider.host_status(name, sender, HostStatus(online=True), site.now)
        site.decider.host_observations(name, sender, said, site.now)
    effects = site.decide()
    assert [one.fence.host for one in effects if isinstance(one, FenceIssued)] == [lost]
    # All hosts of the job learn of it.
    assert len([one for one in effects if isinstance(one, Order) and one.order.fences]) == HOSTS
