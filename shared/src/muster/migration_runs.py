"""Runs migrations by alembic, those of the exchange and of a service in one order. Apart from
muster.migrate: loading SQLAlchemy takes most of a start that has nothing to run.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
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
from muster.migration_files import EXCHANGE, Migration, refuse_edited

Connect = Callable[[], Awaitable[asyncpg.Connection]]

LOCK = 0x6D757374  # one migrator at a time; any number that is nobody else's


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


async def run(connect: Connect, migrations: Mapping[str, list[Migration]]) -> dict[str, list[str]]:
    """Run what each service's schema has not run yet; returns its names, by service. Raises Broken
    with the database's words.
    """
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
    ran: dict[str, list[str]] = {}
    try:
        for service, wanted in migrations.items():
            async with engine.begin() as connection:
                ran[service] = await connection.run_sync(upgrade, service, wanted)
    except DBAPIError as error:
        raise Broken(str(error.orig)) from error
    finally:
        await engine.dispose()
    return ran
