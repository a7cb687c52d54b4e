"""``fabric-compute``: run the service, say what it may do, read what it did.

Exit status: 0 done; 1 not done, or the answer is no; 2 wrong usage or configuration.
"""

from __future__ import annotations

import typer

from compute.cli import (
    broker_command,
    certificate_commands,
    explain_command,
    ledger_commands,
    operate_commands,
    read_commands,
)
from compute.cli.run_command import check, run

EPILOG = "Example: fabric-compute run --config /etc/fabricd/compute.toml"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    epilog=EPILOG,
    help="Decides over lost hosts of training jobs, from a management host.",
    rich_markup_mode=None,
    # A traceback goes to the journal: no boxes, and no values of variables.
    pretty_exceptions_enable=False,
)
app.command(epilog="Example: fabric-compute run --config /etc/fabricd/compute.toml")(run)
app.command(epilog="Example: fabric-compute check --json")(check)
app.command(epilog="Example: fabric-compute promote migrate")(operate_commands.promote)
app.command(epilog="Example: fabric-compute demote")(operate_commands.demote)
app.command(epilog="Example: fabric-compute drain gpu-07 --to gpu-30")(operate_commands.drain)
app.command(epilog="Example: fabric-compute undrain gpu-07")(operate_commands.undrain)
app.command(epilog='Example: fabric-compute confirm-lost gpu-07 --reason "PDU 3 is off"')(
    operate_commands.confirm_lost
)
app.command(epilog='Example: fabric-compute confirm-broken gpu-07 --rank 59 --reason "Xid 79"')(
    operate_commands.confirm_broken
)
app.command(epilog='Example: fabric-compute confirm-repaired gpu-07 --reason "GPU 3 replaced"')(
    operate_commands.confirm_repaired
)
app.command(epilog='Example: fabric-compute stop --reason "switch work"')(operate_commands.stop)
app.command(epilog="Example: fabric-compute resume")(operate_commands.resume)
app.command(epilog="Example: fabric-compute jobs --json")(read_commands.jobs)
app.command(epilog="Example: fabric-compute explain gpu-07")(explain_command.explain)
app.command(epilog="Example: fabric-compute broker --name broker.example.org")(
    broker_command.broker
)
app.add_typer(certificate_commands.app, name="certificates")
app.add_typer(ledger_commands.app, name="ledger")
app.add_typer(ledger_commands.slo_app, name="slo")


def main() -> None:
    """The program."""
    app(prog_name="fabric-compute")
