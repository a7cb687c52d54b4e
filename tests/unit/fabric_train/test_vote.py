"""The vote on a step: the least number, and whether all ranks have changed the same to the same."""

from types import SimpleNamespace

import pytest
from on_demand import on_demand

from fabric_train.messages.process import Assignment
from fabric_train.rank.launched import software

torch = on_demand("torch")
generation_group = on_demand("fabric_train.groups.generation_group", needs="torch")


def vote(*said, rows=None):
    """What each of the ranks hears that say ``(number, digest)``, or with ``ends`` as a third.

    ``rows`` gets what each of them says.
    """
    rows = [] if rows is None else rows

    class Generation(generation_group.GenerationGroup):
        answer = None

        @property
        def group(self):
            return self

        def allreduce(self, tensors, _opts):
            if self.answer is None:
                rows.append(tensors[0].clone())
            else:
                tensors[0].copy_(self.answer)
            return SimpleNamespace(wait=lambda: None)

        def end(self):
            pass

        def discard(self):
            pass

    one = Generation(Assignment(generation=1, rank=0, world=2, store="h0"), None, 1.0)
    for number, digest, *ends in said:
        one.vote(number, digest, ends=bool(*ends))
    Generation.answer = torch.stack(rows).min(0).values
    return [one.vote(number, digest, ends=bool(*ends)) for number, digest, *ends in said]


LARGE = (1 << 62) - 1


@pytest.mark.parametrize(
    ("digests", "equal"),
    [((7, 7), True), ((7, 8), False), ((0, 0), True), ((0, LARGE), False), ((LARGE, LARGE), True),
     ((None, 7), True), ((None, None), True), ((None, 7, 8), False)],
)  # fmt: skip
def test_digests_are_compared_and_who_has_none_does_not_care(digests, equal):
    assert {one[1] for one in vote(*((3, digest) for digest in digests))} == {equal}


def test_the_least_number_holds():
    assert [one[0] for one in vote((5, 1), (2, 1), (9, None))] == [2, 2, 2]


def test_one_rank_is_enough_to_end_the_window_of_all():
    assert [one[2] for one in vote((3, 1, False), (3, 1, True), (3, None, False))] == [True] * 3
    assert [one[2] for one in vote((3, 1, False), (3, 1))] == [False] * 2


def test_ranks_of_another_version_are_refused_before_they_vote():
    """A vote of another length ends the job of all: who changes it gives it another version."""
    vote((3, 1), rows=(said := []))
    assert {"3": 4, "4": 4, "5": 4}[generation_group.RANKS_VERSION] == len(said[0])
    assert software()["fabric_train"].endswith(generation_group.RANKS_VERSION)
