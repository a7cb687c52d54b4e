"""Two owners' jobs of one name are two jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute.decide.owners import LONGEST_NAME, JobOwners, Owner, owner_of
from telemetry.messages.documents import HostJob

ANN, MALLORY = Owner(1000, ""), Owner(65534, "")


@pytest.fixture
def owners():
    return JobOwners()


def place(owners, host, owner, name="gpt", over=()):
    return owners.place(host, name, owner, is_over=lambda job: job in over)


def test_users_have_jobs_of_their_own_whoever_comes_first(owners):
    assert place(owners, "h3", MALLORY) == ("gpt", "")
    job, _ = place(owners, "h0", ANN)
    assert job != "gpt"
    assert place(owners, "h1", ANN) == (job, "")
    assert owners.job_of("h3", "gpt") == "gpt"
    assert owners.job_of("h1", "gpt") == job
    assert owners.name_of(job) == "gpt"
    assert owners.namesakes(job) == ["gpt"]
    assert owners.namesakes("gpt") == [job]


def test_a_key_tells_jobs_of_one_user_apart(owners):
    """A host's root may say any user; the key's hash it cannot know."""
    mine, _ = place(owners, "h0", Owner(1000, "k"))
    for forged in (Owner(1000, ""), Owner(1000, "other"), Owner(None, "")):
        assert place(owners, "h3", forged)[0] != mine
    assert place(owners, "h1", Owner(1000, "k"))[0] == mine


def test_an_older_host_is_of_the_first_job_without_a_key(owners):
    assert place(owners, "h0", Owner(None, "")) == ("gpt", "")
    assert place(owners, "h1", ANN) == ("gpt", ""), "it says now whose it is"
    assert place(owners, "h2", MALLORY)[0] != "gpt"
    assert place(owners, "h0", Owner(None, "")) == ("gpt", "")


def test_the_next_run_of_a_user_goes_on_as_the_same_job_when_the_last_one_is_over(owners):
    place(owners, "h0", Owner(1000, "first"))
    assert place(owners, "h1", Owner(1000, "second"))[0] != "gpt"
    assert place(owners, "h2", Owner(1000, "third"), over={"gpt"}) == ("gpt", "")
    assert place(owners, "h3", Owner(1000, "third")) == ("gpt", "")
    assert place(owners, "h4", MALLORY, over={"gpt"})[0] != "gpt"


def test_a_host_that_runs_another_users_job_has_left_the_first(owners):
    place(owners, "h0", ANN)
    place(owners, "h1", ANN)
    job, left = place(owners, "h1", MALLORY)
    assert left == "gpt"
    assert owners.leave("h1", "gpt") == ["gpt", job], "of the first it may be as gone"
    assert owners.job_of("h1", "gpt") == ""
    assert owners.leave("h1", "bert") == []


def test_an_end_is_of_the_job_whose_key_it_says(owners):
    """A stranger's fabric-run that ends has no part in a job with a key either."""
    place(owners, "h0", MALLORY)
    mine, _ = place(owners, "h1", Owner(1000, "k"))
    gone = owner_of(HostJob(job="gpt", incarnation="i", uid=1000, gone=True), None)
    assert gone == Owner(1000, "")
    assert place(owners, "h2", gone)[0] not in ("gpt", mine)
    said = HostJob(job="gpt", incarnation="i", uid=1000, gone=True, document={"key": "k"})
    assert place(owners, "h3", owner_of(said, None))[0] == mine
    assert owners.is_of(mine, 1000)
    assert owners.is_of(mine, None)
    assert not owners.is_of(mine, 7)


def test_what_nobody_has_and_nobody_shows_is_forgotten(owners):
    place(owners, "h0", ANN)
    job, _ = place(owners, "h3", MALLORY)
    owners.leave("h3", "gpt")
    owners.leave("h0", "gpt")
    owners.sweep({job})
    assert owners.name_of(job) == "gpt"
    assert place(owners, "h5", Owner(7, "")) == ("gpt", "")
    owners.leave("h5", "gpt")
    owners.sweep(())
    assert owners._owners == owners._by_name == owners._homes == {}


def test_a_name_that_another_job_has_already_is_not_taken(owners):
    place(owners, "h0", ANN)
    job, _ = place(owners, "h1", MALLORY)
    owners.leave("h1", "gpt")
    owners.sweep({"gpt"})
    assert place(owners, "h2", ANN, name=job) == (job, "")
    assert place(owners, "h1", MALLORY)[0] not in ("gpt", job)
    assert len(place(owners, "h4", MALLORY, name="x" * LONGEST_NAME)[0]) == LONGEST_NAME
    assert len(place(owners, "h5", ANN, name="x" * LONGEST_NAME)[0]) == LONGEST_NAME


KNOWN = st.builds(Owner, st.integers(0, 2), st.sampled_from(["", "a", "b"]))
STEPS = st.lists(st.tuples(st.sampled_from("abcde"), st.none() | KNOWN), max_size=40)


@given(STEPS)
def test_hosts_are_of_one_job_exactly_if_they_have_one_owner(steps):
    owners, said = JobOwners(), {}
    for host, owner in steps:
        if owner is None:
            owners.leave(host, "gpt")
            said.pop(host, None)
        else:
            place(owners, host, owner)
            said[host] = owner
        owners.sweep(())
        for one in said:
            for other in said:
                same = owners.job_of(one, "gpt") == owners.job_of(other, "gpt")
                assert same == (said[one] == said[other])
        assert len(owners._owners) == len(set(said.values()))
