"""`holdfast policy matrix`: what holders of locks do when renewals fail, changed while it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.connect import Connection, with_plane
from holdfast.cli.output import Column, json_value, moment, print_row, print_rows, text
from holdfast.cli.saying import F, Span, with_by, with_reason

if TYPE_CHECKING:
    from holdfast.api.audit import AuditLine
    from holdfast.api.matrix import CellView, MatrixRules
    from holdfast.client import Client

_FIELDS = ("failures", "action", "reacquire_s", "fallback")
_CELLS: Column = ("set by", lambda row: ", ".join(row["cells"]) or "-")
_ROW = [text("namespace"), text("risk"), text("failures"), text("action"), text("release"), text("reacquire_s"),
        text("fallback"), _CELLS]  # fmt: skip
_RULES: Column = (
    "rules",
    lambda row: " ".join(f"{name}={rule}" for name, rule in row["rules"].items() if rule is not None),
)
_CELL = [text("cell"), _RULES, moment("since"), moment("until"), text("by"), text("reason")]
_EPISODE = [text("namespace"), text("failures"), text("count"), text("was"), text("would")]
_LINE = [moment("at"), text("action"), text("subject"), text("by"), text("reason"), json_value("detail")]
_SEE = "`holdfast policy matrix get` shows the cells that are set"


@click.group()
def matrix() -> None:
    """By risk and namespace: when a lease is given up, what then, and what if the store is away."""


def with_cell(command: F) -> F:
    command = click.option("--namespace", metavar="CLASS", help="Of one lock class, such as workflow.run.")(command)
    return click.option(
        "--risk", type=click.Choice(["low", "medium", "high"]), help="Of all lock classes of this risk."
    )(command)


def with_rules(command: F) -> F:
    for option in (
        click.option("--fallback", type=click.Choice(["fail", "local"]), help="When the store is away at acquire."),
        click.option("--reacquire", "reacquire_s", type=Span(), metavar="TIME", help="How long a lock is waited for."),
        click.option("--action", type=click.Choice(["fence", "continue"]), help="When a lease is given up."),
        click.option("--failures", type=click.IntRange(1, 100), help="Failed renewals after which it is given up."),
    ):
        command = option(command)
    return command


@matrix.command("get")
@with_plane
def get_matrix(connection: Connection) -> None:
    """Every lock class that is renewed, as the plane that answers goes by it now; and the cells that are set."""
    from msgspec import to_builtins  # noqa: PLC0415

    found = connection.ask(lambda client: client.matrix())
    print_rows([to_builtins(row) for row in found.items], _ROW, connection.output)
    if connection.output == "table" and found.cells:
        click.echo()
        print_rows([to_builtins(cell) for cell in found.cells], _CELL, connection.output)


@matrix.command("set")
@with_cell
@with_rules
@click.option("--for", "for_s", type=Span(), metavar="TIME", help="Such as 30m: it reverts by itself.")
@with_reason("Why; kept in the audit.")
@with_by
@with_plane
def set_matrix(
    connection: Connection,
    *,
    risk: str | None,
    namespace: str | None,
    for_s: float | None,
    reason: str,
    by: str,
    **rules: Any,  # noqa: ANN401
) -> None:
    """Change it, on all replicas within 5 s. Leases that are held obey at their next renewal."""
    cell, wanted = _cell(risk, namespace), _rules(rules)
    made = connection.ask(lambda client: client.set_matrix(cell, wanted, reason=reason, for_s=for_s, by=by))
    _show(connection, made)


@matrix.command("reset")
@with_cell
@with_reason("Why; kept in the audit.")
@with_by
@with_plane
def reset_matrix(connection: Connection, *, risk: str | None, namespace: str | None, reason: str, by: str) -> None:
    """Take a cell back before its time."""
    cell = _cell(risk, namespace)
    _show(connection, connection.ask(lambda client: client.reset_matrix(cell, reason=reason, by=by), hint=_SEE))
    click.echo("this cell is set no more", err=True)


@matrix.command()
@with_plane
def diff(connection: Connection) -> None:
    """What is not as the code declares it. Exit code 1 if anything."""
    from msgspec import to_builtins  # noqa: PLC0415

    found = connection.ask(lambda client: client.matrix())
    rows = [to_builtins(row) for row in found.items]
    changed = [
        {"namespace": row["namespace"], "setting": name, "declared": row["declared"][name], "now": row[name]}
        for row in rows
        for name in _FIELDS
        if row["declared"][name] != row[name]
    ]
    print_rows(changed, [text("namespace"), text("setting"), text("declared"), text("now")], connection.output)
    if changed:
        click.get_current_context().exit(1)
    click.echo("everything is as declared", err=True)


@matrix.command()
@with_cell
@with_rules
@with_plane
def simulate(connection: Connection, *, risk: str | None, namespace: str | None, **rules: Any) -> None:  # noqa: ANN401
    """What it would have made of the renewals that failed in the last day. Changes nothing."""
    from msgspec import to_builtins  # noqa: PLC0415

    cell, wanted = _cell(risk, namespace), _rules(rules)
    found = connection.ask(lambda client: client.simulate_matrix(cell, wanted))
    print_rows([to_builtins(item) for item in found.items], _EPISODE, connection.output)
    click.echo(f"{found.seen} troubles in the last day, {found.changed} would have gone otherwise", err=True)


@matrix.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many to show.")
@with_plane
def history(connection: Connection, *, limit: int) -> None:
    """Every change of the matrix, newest first: by whom, and why."""
    from msgspec import to_builtins  # noqa: PLC0415

    def read(client: Client) -> list[AuditLine]:
        actions = ("matrix.set", "matrix.reverted")
        return [line for action in actions for line in client.audit(plane=True, action=action, limit=limit).items]

    lines = sorted(connection.ask(read), key=lambda line: -line.number)[:limit]
    print_rows([to_builtins(line) for line in lines], _LINE, connection.output)
    if not lines:
        click.echo("it was never changed", err=True)


def _cell(risk: str | None, namespace: str | None) -> str:
    if (risk is None) == (namespace is None):
        raise click.UsageError("give one of --risk RISK and --namespace CLASS")
    return f"namespace={namespace}" if risk is None else f"risk={risk}"


def _rules(given: dict[str, Any]) -> MatrixRules:
    from holdfast.api.matrix import MatrixRules  # noqa: PLC0415

    if all(value is None for value in given.values()):
        raise click.UsageError("give at least one of --failures, --action, --reacquire and --fallback")
    return MatrixRules(**given)


def _show(connection: Connection, made: CellView) -> None:
    from msgspec import to_builtins  # noqa: PLC0415

    print_row(to_builtins(made), _CELL, connection.output)
