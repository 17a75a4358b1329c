"""Brings the database schema of each service to the newest migration: ``python -m muster.migrate``.

A file that was changed after it ran is refused. This is a process of its own (an init step,
``muster up``), never a part of a service: SQLAlchemy stays out of their memory.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

import asyncpg

from muster.errors import Broken
from muster.migration_files import NO_ADDRESS, Migration, migrations_of, not_run

SERVICES = ("rest", "launcher", "scheduler", "alerting")
CONNECT_TIMEOUT_S = 10


async def migrate(database_url: str, services: Sequence[str] = SERVICES) -> dict[str, list[str]]:
    """Bring the schemas of ``services`` up to date; returns what ran, by service. The URL means
    what it means to the services: all that asyncpg understands.
    """

    async def connect() -> asyncpg.Connection:
        try:
            return await asyncpg.connect(database_url, timeout=CONNECT_TIMEOUT_S)
        except OSError:  # a bad certificate is a ValueError too
            raise
        except ValueError:
            raise Broken(NO_ADDRESS) from None  # its text may hold a piece of the password

    wanted = {service: migrations_of(service) for service in services}
    connection = await connect()
    try:
        if await _have_run(connection, wanted):
            return {service: [] for service in services}
    finally:
        await connection.close()
    from muster.migration_runs import run  # it loads SQLAlchemy

    return await run(connect, wanted)


async def _have_run(
    connection: asyncpg.Connection, migrations: Mapping[str, Sequence[Migration]]
) -> bool:
    for service, wanted in migrations.items():
        await connection.execute("SELECT set_config('search_path', $1, false)", service)
        try:
            rows = await connection.fetch("SELECT revision, sha256 FROM migration_file")
        except asyncpg.UndefinedTableError:
            return False
        if not_run(wanted, {row["revision"]: row["sha256"] for row in rows}):
            return False
    return True


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
    except (Broken, OSError, asyncpg.PostgresError) as error:
        sys.exit(f"The database could not be migrated: {str(error) or type(error).__name__}")
    for service, files in ran.items():
        print(f"{service}: {', '.join(files) or 'up to date'}")


if __name__ == "__main__":
    main()
