"""The live view of the second act (rich)."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lab.demo.training.act import Act
from lab.demo.training.story import RANKS, TOTAL
from lab.demo.view import BARS, STATE_STYLE
from telemetry.events import LinkState

STATE_MARK = {LinkState.UP: "●", LinkState.PROBATION: "◐", LinkState.HOLD: "◌"}


def curve(values: list[float], width: int) -> str:
    """The whole of ``values`` as ``width`` block characters, from least to most."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    size = max(1, len(values) / width)
    picked = [values[min(len(values) - 1, int(i * size))] for i in range(min(width, len(values)))]
    return "".join(BARS[1 + round(7 * (value - low) / span)] for value in picked)


def draw(act: Act, width: int, height: int) -> RenderableType:
    """The whole screen for a terminal of that size."""
    layout = Layout()
    hosts = len(act.cluster.nodes) + 3
    layout.split_column(
        Layout(_head(act, width), size=5),
        Layout(_hosts(act), size=hosts),
        Layout(_log(act, max(1, height - 5 - hosts - 2))),
    )
    return layout


def _head(act: Act, width: int) -> RenderableType:
    losses = [step.loss for step in act.progress.steps if step.rank == 0]
    newest = act.progress.newest.get(0)
    step, loss = (newest.step, newest.loss) if newest else (0, 0.0)
    line = Text()
    line.append(f"step {step} of {TOTAL}  loss {loss:.3f}  ", "bold")
    line.append(f"generation {act.generation or 1}\n")
    line.append(curve(losses, width - 6), "cyan")
    line.append(f"\n{act.phase}"[: width - 5], "yellow")
    return Panel(line, title="a small GPT trains over the plugin", title_align="left")


def _hosts(act: Act) -> RenderableType:
    table = Table(expand=True, box=None)
    for name in ("host", "ranks", "links", "step"):
        table.add_column(name, no_wrap=True)
    ranks = {rank: step for rank, step in act.progress.newest.items() if rank < RANKS}
    for watch in act.watch.hosts:
        name = watch.node.name
        mine = [rank for rank, step in sorted(ranks.items()) if step.host == name]
        links = Text()
        for link, state in sorted(watch.states.items()):
            links.append(f"{STATE_MARK.get(state, '✖')} {link}  ", STATE_STYLE.get(state, ""))
        steps = ", ".join(str(ranks[rank].step) for rank in mine)
        table.add_row(name, ", ".join(map(str, mine)) or "spare", links, steps)
    return Panel(table, title="ranks on hosts", title_align="left")


def _log(act: Act, height: int) -> RenderableType:
    lines = [f"{at:6.1f} s  {text}" for at, text in act.log[-height:]]
    return Panel(Text("\n".join(lines), no_wrap=True), title="what happened", title_align="left")


class LinePrinter:
    """The view without a terminal: each line as it comes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0

    def show(self, act: Act) -> None:
        """Print what is new."""
        for at, text in act.log[self._printed :]:
            self._console.print(f"{at:7.2f} s  {text}", markup=False)
        self._printed = len(act.log)
