"""Brings the database schema of each service to the newest migration: ``python -m muster.migrate``.

Migrations are plain SQL files, ``<package>/migrations/NNNN_what.sql``, run by alembic; the
exchange's
tables come first in every schema. A file that was changed after it ran is refused. Runs as its own
process (an init step, ``muster up``), never in a service: SQLAlchemy stays out of their memory.
"""

import argparse
import asyncio
import hashlib
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from alembic import op
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import Script, ScriptDirectory
from alembic.script.revision import RevisionMap
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from muster.errors import Broken

SERVICES = ("rest", "launcher", "scheduler", "alerting")
EXCHANGE = Path(__file__).parent / "migrations"
LOCK = 0x6D757374  # one migrator at a time; any number that is nobody else's


@dataclass(frozen=True, slots=True)
class Migration:
    """One SQL file."""

    revision: str
    before: str | None
    path: Path

    @property
    def sql(self) -> str:
        return self.path.read_text()

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def script(self) -> Script:
        """The migration as alembic knows one."""
        module = ModuleType(self.revision, doc=self.path.stem)
        module.revision = self.revision  # type: ignore[attr-defined]
        module.down_revision = self.before  # type: ignore[attr-defined]
        module.upgrade = self.upgrade  # type: ignore[attr-defined]
        return Script(module, self.revision, str(self.path))

    def upgrade(self) -> None:
        bind = op.get_bind()
        raw = bind.connection.dbapi_connection
        raw.run_async(lambda conn: conn.execute(self.sql))  # type: ignore[union-attr]
        bind.execute(
            text("INSERT INTO migration_file (revision, sha256) VALUES (:r, :s)"),
            {"r": self.revision, "s": self.checksum},
        )


def migrations_of(service: str) -> list[Migration]:
    """The migrations of a service's schema, oldest first.

    Raises Broken where the service is not installed or two files have one number.
    """
    spec = importlib.util.find_spec(service)
    if spec is None or spec.origin is None:
        raise Broken(f"the package {service} is not installed, so its migrations can't be found")
    own = Path(spec.origin).parent / "migrations"
    files = [*sorted(EXCHANGE.glob("*.sql")), *sorted(own.glob("*.sql"))]
    found: list[Migration] = []
    for path in files:
        revision = path.stem.split("_")[0]
        if any(m.revision == revision for m in found):
            raise Broken(f"two migrations of {service} have the number {revision}")
        found.append(Migration(revision, found[-1].revision if found else None, path))
    return found


def upgrade(connection: Connection, service: str, migrations: list[Migration]) -> list[str]:
    """Run what has not run yet; returns the names of the files that ran.

    Raises Broken where a file was changed after it ran.
    """
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{service}"'))
    connection.execute(text(f'SET search_path TO "{service}"'))
    connection.execute(
        text(
            "CREATE TABLE IF NOT EXISTS migration_file"
            " (revision text PRIMARY KEY, sha256 text NOT NULL, ran_at timestamptz DEFAULT now())"
        )
    )
    _refuse_edited(connection, migrations)
    directory = ScriptDirectory(str(EXCHANGE))
    directory.revision_map = RevisionMap(lambda: [m.script() for m in migrations])
    ran: list[str] = []

    def steps(heads: tuple[str, ...], _context: MigrationContext) -> Iterable[RevisionStep]:
        todo = directory._upgrade_revs("head", heads)  # type: ignore[arg-type]  # what alembic's own command calls
        ran.extend(str(step.doc) for step in todo)
        return todo

    context = MigrationContext.configure(
        connection, opts={"fn": steps, "version_table_schema": service}
    )
    with Operations.context(context):
        context.run_migrations()
    return ran


def _refuse_edited(connection: Connection, migrations: list[Migration]) -> None:
    rows = connection.execute(text("SELECT revision, sha256 FROM migration_file"))
    ran = {row.revision: row.sha256 for row in rows}
    for migration in migrations:
        if ran.get(migration.revision, migration.checksum) != migration.checksum:
            raise Broken(
                f"{migration.path.name} was changed after it ran on this database:"
                " put it back, and make the change in a new migration"
            )


async def migrate(database_url: str, services: tuple[str, ...] = SERVICES) -> dict[str, list[str]]:
    """Bring the schemas of ``services`` up to date; returns what ran, by service."""
    url = database_url.replace("postgresql://", "postgresql+asyncpg://", 1)
    engine = create_async_engine(url, connect_args={"timeout": 10})
    ran: dict[str, list[str]] = {}
    try:
        for service in services:
            async with engine.begin() as connection:
                ran[service] = await connection.run_sync(upgrade, service, migrations_of(service))
    finally:
        await engine.dispose()
    return ran


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m muster.migrate", description=__doc__)
    parser.add_argument("services", nargs="*", default=list(SERVICES))
    parser.add_argument(
        "--database-url",
        default=os.environ.get("MUSTER_DATABASE_URL"),
        help="by default MUSTER_DATABASE_URL, which other users of the machine can't read",
    )
    arguments = parser.parse_args()
    if not arguments.database_url:
        parser.error("set MUSTER_DATABASE_URL or give --database-url")
    ran = asyncio.run(migrate(arguments.database_url, tuple(arguments.services)))
    for service, files in ran.items():
        print(f"{service}: {', '.join(files) or 'up to date'}")


if __name__ == "__main__":
    main()
