"""SQLite databases in memory that stories hand on: emptied and used again.

Making the tables, and preparing each statement once per connection, would take longer than many a story.
"""

from __future__ import annotations

import apsw

STATEMENTS_MAX = 500
"""Kept prepared: more than the product has."""

_idle: list[Database] = []


class Database(apsw.Connection):
    """Stands in for `apsw.Connection`, which is asked for databases in memory alone while a story is told."""

    _replaced = False

    def deserialize(self, name: str, contents: bytes) -> None:
        self._replaced = True  # its memory is another kind of memory from now on
        super().deserialize(name, contents)

    def close(self, force: bool = False) -> None:
        if self._replaced or self.in_transaction:
            super().close(force)
            return
        self.set_commit_hook(None)
        for (table,) in self.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            self.execute(f"DELETE FROM {table}")
        _idle.append(self)


def connect(path: str) -> Database:
    assert path == ":memory:", path
    return _idle.pop() if _idle else Database(path, statementcachesize=STATEMENTS_MAX)
