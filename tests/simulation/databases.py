"""SQLite databases in memory that stories hand on: emptied and used again.

Making the tables, and preparing each statement once per connection, would take longer than many a story.
"""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.locks.stores.sqlite import writer as sqlite_writer
from holdfast.stores.sqlite import file as sqlite_file

STATEMENTS_MAX = 512
"""Kept prepared: as many as APSW keeps."""

Contents = dict[str, list[tuple[Any, ...]]]
"""The rows of each table."""

_idle: list[Database] = []
_latest: list[Database] = []


class Database(apsw.Connection):
    """Stands in for `apsw.Connection`, which is asked for databases in memory alone while a story is told."""

    def __init__(self, path: str) -> None:
        super().__init__(path, statementcachesize=STATEMENTS_MAX)
        self.made: set[Schema] = set()

    def copy(self) -> Contents:
        return {table: self.execute(f"SELECT * FROM {table}").fetchall() for table in self._tables()}

    def become(self, contents: Contents) -> None:
        """Have these rows and no others, of the same tables."""
        with self:
            self._empty()
            for table, rows in contents.items():
                if rows:
                    self.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def close(self, force: bool = False) -> None:
        if self.in_transaction:
            super().close(force)
            return
        self.set_commit_hook(None)
        self._empty()
        _idle.append(self)

    def _empty(self) -> None:
        for table in self._tables():
            self.execute(f"DELETE FROM {table}")

    def _tables(self) -> list[str]:
        return [str(name) for (name,) in self.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]


class Schema:
    """Stands in for the file whose text makes tables, once per database."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self) -> str:
        database = _latest[-1]
        if self in database.made:
            return ""
        database.made.add(self)
        return self._text


def connect(path: str) -> Database:
    assert path == ":memory:", path
    _latest[:] = [_idle.pop() if _idle else Database(path)]
    return _latest[-1]


STAND_INS = {
    "apsw.Connection": connect,
    "holdfast.locks.stores.sqlite.writer._SCHEMA": Schema(sqlite_writer._SCHEMA.read_text()),
    "holdfast.stores.sqlite.file._SCHEMA": Schema(sqlite_file._SCHEMA.read_text()),
    "holdfast.stores.sqlite.file.PlanePart._refuse_damaged": lambda *_: None,
}
"""While a store is opened. Memory is not looked through for damage."""
