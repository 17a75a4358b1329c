"""Migrations: from empty to head, twice, and never an edited file."""

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from muster import migrate as migrating
from muster import migration_files
from muster.errors import Broken
from muster.migrate import SERVICES, migrate
from muster.migration_files import migrations_of


async def test_migrating_twice_changes_nothing(empty_database_url: str) -> None:
    first = await migrate(empty_database_url)
    assert all(files[0] == "0000_exchange" for files in first.values())
    assert await migrate(empty_database_url) == {service: [] for service in SERVICES}


async def test_nothing_to_run_loads_no_alembic(database_url: str) -> None:
    command = (sys.executable, "-X", "importtime", "-m", "muster.migrate")
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | {"MUSTER_DATABASE_URL": database_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, loaded = await process.communicate()
    assert out.decode().splitlines() == [f"{service}: up to date" for service in SERVICES]
    assert b"asyncpg" in loaded
    assert b"alembic" not in loaded
    assert b"sqlalchemy" not in loaded


async def test_a_certificate_that_does_not_fit_is_named() -> None:
    """It is no wrong address, though Python calls it a wrong value."""
    certificates = Path(__file__).parents[1] / "alerting" / "tls"
    offered = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    offered.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # PostgreSQL's request for TLS
        writer.write(b"S")
        with contextlib.suppress(OSError):
            await writer.start_tls(offered)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        root = f"sslmode=verify-full&sslrootcert={certificates / 'cert.pem'}"
        with pytest.raises(ssl.SSLCertVerificationError):
            await migrate(f"postgresql://me:secret@127.0.0.1:{port}/muster?{root}")


async def test_two_migrators_at_once_are_harmless(empty_database_url: str) -> None:
    both = await asyncio.gather(migrate(empty_database_url), migrate(empty_database_url))
    for service in SERVICES:
        ran = [result[service] for result in both]
        assert sorted(map(len, ran)) == [0, len(migrations_of(service))]


async def test_a_file_that_was_edited_after_it_ran_is_refused(
    empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = next(migration_files.EXCHANGE.glob("0000_*.sql"))
    copy = tmp_path / original.name
    copy.write_text(original.read_text())
    monkeypatch.setattr(migration_files, "EXCHANGE", tmp_path)
    await migrate(empty_database_url, ("rest",))
    copy.write_text(original.read_text() + "\n-- one more line")
    with pytest.raises(Broken, match="changed after it ran"):
        await migrate(empty_database_url, ("rest",))


OLDER_EVENT = """
    INSERT INTO alerting.event (key, name, at, body, subject, text, html, thread)
    VALUES ($1, 'job-failed', now(), $2, 's', 't', 'h', 't')
"""


async def test_older_alerting_writes_to_newer_tables_and_its_events_are_kept(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = "NUL \0\0, \\\0 and \\u0000"
    body = json.dumps({"data": {"severity": "info", "title": title, "text": ""}})
    older = [it for it in migrations_of("alerting") if it.revision < "0036"]
    with monkeypatch.context() as patch:
        patch.setattr(migrating, "migrations_of", lambda _: older)
        await migrate(empty_database_url, ("alerting",))
    conn = await asyncpg.connect(empty_database_url)
    try:
        await conn.execute(OLDER_EVENT, "k1", body)
        await migrate(empty_database_url, ("alerting",))
        await conn.execute(OLDER_EVENT, "k2", body)
        found = await conn.fetchval(
            "SELECT message ->> 'title' FROM alerting.event WHERE key = 'k1'"
        )
    finally:
        await conn.close()
    assert found == title.replace("\0", "\ufffd")


async def test_each_service_has_the_tables_of_the_exchange(database_url: str) -> None:
    conn = await asyncpg.connect(database_url)
    try:
        rows = await conn.fetch(
            "SELECT table_schema FROM information_schema.tables WHERE table_name = 'subject'"
        )
    finally:
        await conn.close()
    assert {row["table_schema"] for row in rows} == set(SERVICES)
