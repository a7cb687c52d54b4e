"""``fabricctl key`` and ``fabricctl sniff``: what concerns the probes on the wire."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fabricd.cli.base import DEFAULT_SOCKET, Socket, fail, out, put, why
from fabricd.cli.host_names import host_names
from fabricd.probes import keys

key_app = typer.Typer(no_args_is_help=True, help="The probe keys of this host.")

KeyFile = Annotated[Path, typer.Option("--key-file", help="One key a line; the first signs.")]
RunDir = Annotated[Path, typer.Option("--run-dir", help="The daemon's.")]
DEFAULT_KEY = Path("/etc/fabricd/probe.key")
DEFAULT_RUN = Path("/run/fabricd")


@key_app.command("load", epilog="Example: fabricctl key load --key-file /etc/fabricd/probe.key")
def load(key_file: KeyFile = DEFAULT_KEY, run_dir: RunDir = DEFAULT_RUN) -> None:
    """Hand the file's keys to the running prober; it goes on probing meanwhile."""
    from fabricd.probes.client import ProberError, ProberGoneError

    try:
        text = keys.read(key_file)
        asyncio.run(_hand_over(run_dir, text))
    except (keys.KeyFileError, ProberError, ProberGoneError, OSError) as error:
        fail(why(error))
    out.print(f"loaded: {_keys(text)}")


@key_app.command("rotate", epilog="Example: fabricctl key rotate add")
def rotate(
    step: Annotated[str, typer.Argument(help="add, use or drop, each on all hosts in turn.")],
    key_file: KeyFile = DEFAULT_KEY,
    new: Annotated[
        Path | None, typer.Option("--new", help="add: a file with the new key (other hosts').")
    ] = None,
) -> None:
    """Write the next step of a rotation into the file; `key load` puts it in force."""
    from telemetry.service.durable import replace_text

    try:
        added = keys.read(new) if new is not None else ""
        text = keys.step(keys.read(key_file), step, added)
        replace_text(key_file, text, 0o600)
    except (keys.KeyFileError, OSError) as error:
        fail(why(error))
    out.print(f"{key_file}: {_keys(text)}", soft_wrap=True)


def _keys(text: str) -> str:
    """What hosts are compared by: the fingerprint of each key, the one that signs first."""
    signs, *others = (keys.fingerprint(key) for key in keys.parse(text))
    return f"{signs} signs" + "".join(f", {other} is accepted" for other in others)


async def _hand_over(run_dir: Path, text: str) -> None:
    from fabricd.probes.client import ProberClient

    client = await ProberClient.connect(run_dir / "prober" / "ctl.sock")
    try:
        await client.rekey(text)
    finally:
        await client.close()


def sniff(
    interface: Annotated[str, typer.Argument(help="Where to listen, e.g. rail0.")] = "",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The probe port.")] = 9200,
    count: Annotated[int, typer.Option(min=0, help="End after that many; 0: never.")] = 0,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="Say whether each tag is right.")
    ] = None,
    read: Annotated[Path | None, typer.Option("--read", help="A pcap instead of the wire.")] = None,
    write: Annotated[Path | None, typer.Option("--write", help="Keep them as a pcap.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Every field of each packet.")] = False,
    socket: Socket = DEFAULT_SOCKET,
) -> None:
    """Show the probes on an interface (needs scapy, which the wheel does not bring)."""
    if bool(interface) == (read is not None):
        raise typer.BadParameter("exactly one of an interface and --read")
    try:
        from fabricd.probes import sniffing
    except ImportError:
        pip = f"{sys.prefix}/bin/pip install --require-hashes -r wheels/sniff.txt"
        fail(f"scapy is not installed: {pip} (docs/operate/install.md, step 1)")
    try:
        known = keys.parse(keys.read(key_file)) if key_file is not None else []
        shown = sniffing.listen(
            interface=interface, pcap=read, port=port, count=count, keys=known, write=write,
            names=host_names(socket),
        )  # fmt: skip
        for packet in shown:
            _show(packet, full=full)
    except (keys.KeyFileError, OSError, sniffing.SniffError) as error:
        fail(why(error))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _show(packet: Any, *, full: bool) -> None:  # noqa: ANN401 - sniffing.Seen
    stamp = time.strftime("%H:%M:%S", time.localtime(packet.time_s))
    put(f"{stamp}.{int(packet.time_s % 1 * 1e6):06d}  {packet.summary}")
    for line in packet.detail.splitlines() if full else ():
        put(line)
    sys.stdout.flush()


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(key_app, name="key")
    app.command(epilog="Example: fabricctl sniff rail0 --key-file /etc/fabricd/probe.key")(sniff)
