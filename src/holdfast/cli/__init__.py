"""The `holdfast` command."""

from __future__ import annotations

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

policy.add_command(matrix)


class _Interruptible(click.Group):
    """Ctrl-C ends any command with the code that shells give it, and without a remark."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=_Interruptible, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def cli() -> None:
    """Locks that stay correct, and a control plane for work that must not happen twice.

    Start with `holdfast up`, then `holdfast worker MODULE:WORKER` and `holdfast job submit TOPIC`.
    """


for command in (
    up,
    gateway,
    scheduler,
    reconciler,
    worker,
    job,
    workflow,
    run,
    why,
    doctor,
    top,
    approval,
    dead_letter,
    effect,
    schedule,
    webhook,
    lock,
    store,
    policy,
    key,
    drill,
    runbook,
    freeze,
    unfreeze,
    incident,
    audit,
    config,
    completion,
):
    cli.add_command(command)


def main() -> None:
    cli(prog_name="holdfast")
