"""What is kept of agents' votes as documents come is what the newest of them say."""

from hypothesis import given, settings
from hypothesis import strategies as st

from compute.decide.agent_votes import AgentVotes

NAMES = ["a", "b", "c", "d"]
names = st.sampled_from(NAMES)
lists = st.lists(names, max_size=4)
said = st.none() | st.tuples(lists, lists)
questions = st.lists(names, max_size=3)
updates = st.lists(st.tuples(names, said, questions), max_size=12)


def all_of(votes):
    return (
        set(votes.agents), set(votes.missed),
        {host: (set(votes.missed_by(host)), set(votes.heard_by(host))) for host in NAMES},
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(updates)
def test_what_is_kept_is_what_the_newest_documents_say(steps):
    votes, newest = AgentVotes(), {}
    for agent, news, asked in steps:
        if news is None:
            votes.remove(agent)
            newest.pop(agent, None)
        else:
            votes.update(agent, *news)
            newest[agent] = news
        for host in asked:  # only about some hosts, so that others are learned of later
            wanted = {name for name, (hears, _) in newest.items() if host in hears}
            assert set(votes.heard_by(host)) == wanted
        votes.keep(asked)
    assert all_of(votes) == all_of(AgentVotes.of(newest))
