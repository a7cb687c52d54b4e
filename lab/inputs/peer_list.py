"""``[[peers]]`` tables of a site with many hosts that are not there."""

from __future__ import annotations

RAILS = 8
FIRST_NET = 100
"""Their rail r has the addresses 10.<100+r>.0.0/16, which no lab uses."""


def peer_list(hosts: int, rails: int = RAILS, first: int = 0) -> str:
    """TOML text of the hosts ``site<first>``, ``site<first+1>`` and so on."""
    return "".join(peer_table(number, rails) for number in range(first, first + hosts))


def peer_table(number: int, rails: int = RAILS, shift: int = 0) -> str:
    """One of them; ``shift`` gives it other addresses, which no other host of the list has."""
    entries = "".join(
        f'  {{ rail = {rail}, address = "{address(number + shift, rail)}" }},\n'
        for rail in range(rails)
    )
    return f'\n[[peers]]\nhost = "site{number}"\naddresses = [\n{entries}]\n'


def address(number: int, rail: int) -> str:
    """The address of a host on a rail."""
    place = number + 1
    return f"10.{FIRST_NET + rail}.{place >> 8}.{place & 255}"
