"""The `holdfast` command."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import sys

import click

from holdfast import __version__
from holdfast.cli.approval import approval
from holdfast.cli.audit import audit
from holdfast.cli.dead_letter import dead_letter
from holdfast.cli.doctor import doctor
from holdfast.cli.drill import drill
from holdfast.cli.effect import effect
from holdfast.cli.freeze import freeze, unfreeze
from holdfast.cli.incident import incident
from holdfast.cli.job import job
from holdfast.cli.key import key
from holdfast.cli.lock import lock
from holdfast.cli.matrix import matrix
from holdfast.cli.plane import gateway, reconciler, scheduler, up
from holdfast.cli.policy import policy
from holdfast.cli.refusals import Failed
from holdfast.cli.run import run
from holdfast.cli.runbook import runbook
from holdfast.cli.schedule import schedule
from holdfast.cli.settings import completion, config
from holdfast.cli.store import store
from holdfast.cli.top import top
from holdfast.cli.webhook import webhook
from holdfast.cli.why import why
from holdfast.cli.worker import worker
from holdfast.cli.workflow import workflow

INTERRUPTED = 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

policy.add_command(matrix)


COMMANDS: dict[str, tuple[click.Command, ...]] = {
    "Run a plane and its workers": (up, worker, gateway, scheduler, reconciler, store),
    "Work": (job, workflow, run, schedule, webhook),
    "What people decide": (policy, approval, effect, dead_letter, key),
    "See how it stands": (top, why, doctor, lock, audit),
    "When something is wrong": (incident, freeze, unfreeze, runbook, drill),
    "This command": (config, completion),
}
"""As `holdfast --help` shows them: in the order in which somebody new needs them."""


class _Root(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        """Ctrl-C ends any command with the code that shells give it, and without a remark. A disk that is full is told as
        that, whether the output goes there or a file."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            _drop_unwritten()
            raise Failed(f"it could not all be written: {error.strerror}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(one.name or "", one.get_short_help_str()) for one in commands], col_max=12)


def _drop_unwritten() -> None:
    """Python would try to write it once more when it ends, and end with a remark and a code of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def cli() -> None:
    """Locks that stay correct, and a control plane for work that must not happen twice.

    Start with `holdfast up`, then `holdfast worker MODULE:WORKER` and `holdfast job submit TOPIC`.
    """


def _tell_first_sentences(group: click.Group) -> None:
    """In the list of its group a command has its first sentence. Click would cut it where the line ends."""
    for command in group.commands.values():
        first, end, _ = " ".join((command.help or "").split("\n\n")[0].split()).partition(". ")
        command.short_help = first + end.strip()
        if isinstance(command, click.Group):
            _tell_first_sentences(command)


for section in COMMANDS.values():
    for command in section:
        cli.add_command(command)
_tell_first_sentences(cli)


def main() -> None:
    codecs.register_error("escaped", _escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="escaped")
    cli(prog_name="holdfast")


def _escape(error: UnicodeError) -> tuple[str, int]:
    """What a terminal has no letters for, as JSON writes it: what was asked for has been done by then, and is to be told."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
