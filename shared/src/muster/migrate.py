"""Brings the database schema of each service to the newest migration: ``python -m muster.migrate``.

Alembic runs the files (muster.migration_files), the exchange's and the service's own in one order.
A file that was changed after it ran is refused. This is a process of its own (an init step,
``muster up``), never a part of a service: SQLAlchemy stays out of their memory.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable
from types import ModuleType

import asyncpg
from alembic import op
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationStep, RevisionStep
from alembic.script import Script, ScriptDirectory
from alembic.script.revision import RevisionMap
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from muster.errors import Broken
from muster.migration_files import (
    EXCHANGE,
    NO_ADDRESS,
    Migration,
    migrations_of,
    refuse_edited,
)

SERVICES = ("rest", "launcher", "scheduler", "alerting")
LOCK = 0x6D757374  # one migrator at a time; any number that is nobody else's
CONNECT_TIMEOUT_S = 10


def _script(migration: Migration) -> Script:
    """A migration as alembic knows one."""
    module = ModuleType(migration.revision, doc=migration.path.stem)
    module.revision = migration.revision  # type: ignore[attr-defined]
    module.down_revision = migration.before  # type: ignore[attr-defined]
    module.upgrade = lambda: _run(migration)  # type: ignore[attr-defined]
    return Script(module, migration.revision, str(migration.path))


def _run(migration: Migration) -> None:
    bind = op.get_bind()
    raw = bind.connection.dbapi_connection
    raw.run_async(lambda conn: conn.execute(migration.sql))  # type: ignore[union-attr]
    bind.execute(
        text("INSERT INTO migration_file (revision, sha256) VALUES (:r, :s)"),
        {"r": migration.revision, "s": migration.checksum},
    )


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
    rows = connection.execute(text("SELECT revision, sha256 FROM migration_file"))
    refuse_edited(migrations, {row.revision: row.sha256 for row in rows})
    directory = ScriptDirectory(str(EXCHANGE))
    directory.revision_map = RevisionMap(lambda: [_script(m) for m in migrations])
    ran: list[str] = []

    def upgrades(heads: tuple[str, ...], _context: MigrationContext) -> Iterable[RevisionStep]:
        todo = reversed(list(directory.iterate_revisions("head", heads, implicit_base=True)))
        steps = [MigrationStep.upgrade_from_script(directory.revision_map, each) for each in todo]
        ran.extend(str(step.doc) for step in steps)
        return steps

    context = MigrationContext.configure(
        connection, opts={"fn": upgrades, "version_table_schema": service}
    )
    with Operations.context(context):
        context.run_migrations()
    return ran


async def migrate(database_url: str, services: tuple[str, ...] = SERVICES) -> dict[str, list[str]]:
    """Bring the schemas of ``services`` up to date; returns what ran, by service. The URL means
    what it means to the services: all that asyncpg understands.
    """

    async def connect() -> asyncpg.Connection:
        try:
            return await asyncpg.connect(database_url, timeout=CONNECT_TIMEOUT_S)
        except ValueError:
            raise Broken(NO_ADDRESS) from None  # its text may hold a piece of the password

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
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
    try:
        ran = asyncio.run(migrate(arguments.database_url, tuple(arguments.services)))
    except (Broken, OSError, asyncpg.PostgresError, DBAPIError) as error:
        reason = str(error.orig if isinstance(error, DBAPIError) else error)
        sys.exit(f"The database could not be migrated: {reason or type(error).__name__}")
    for service, files in ran.items():
        print(f"{service}: {', '.join(files) or 'up to date'}")


if __name__ == "__main__":
    main()
