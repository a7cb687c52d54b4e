"""Random generators of this process, as bytes."""

from __future__ import annotations

from fabric_train.state.rank_local import LocalStates, RandomStates


def encoded_numbers() -> bytes:
    """All of them, as they are now."""
    states = LocalStates({})
    return states.encode(RandomStates.now(), states.parts_now(), {})


def restore_numbers(numbers: bytes) -> None:
    """Take back what ``encoded_numbers`` gave, here or in another process."""
    LocalStates({}).restore(numbers, {})
