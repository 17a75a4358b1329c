"""What migrations do to rows that are there."""

import asyncpg
import pytest
from muster import migrate as migrating
from muster.migrate import migrate
from muster.migration_files import Migration, migrations_of

pytestmark = [pytest.mark.postgres]


async def test_what_waited_for_a_subscriptions_file_is_given_up(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def earlier(service: str) -> list[Migration]:
        return [it for it in migrations_of(service) if it.revision < "0069"]

    with monkeypatch.context() as patched:
        patched.setattr(migrating, "migrations_of", earlier)
        await migrate(empty_database_url, ("alerting",))
    conn = await asyncpg.connect(empty_database_url, server_settings={"search_path": "alerting"})
    try:
        await conn.execute(
            """
            INSERT INTO event (key, name, at) VALUES ('e1', 'job-failed', now());
            INSERT INTO receiver (subscription, channel, version, owner)
            VALUES ('file/ops', 'webhook', '1', '(file)'), ('s1', 'webhook', '1', 'ada');
            INSERT INTO delivery (id, subscription, channel, event_key, digest_at, state)
            VALUES ('a', 'file/ops', 'webhook', 'e1', NULL, 'waiting'),
                ('b', 'file/team', 'mail', 'e1', now(), 'waiting'),
                ('c', 'file/sent', 'mail', 'e1', NULL, 'sent'),
                ('d', 's1', 'webhook', 'e1', NULL, 'waiting');
            """
        )
        await migrate(empty_database_url, ("alerting",))
        found = await conn.fetch("SELECT state, why FROM delivery ORDER BY id")
        ended = ("given-up", "unsubscribed")
        assert [tuple(it) for it in found] == [ended, ended, ("sent", None), ("waiting", None)]
        assert await conn.fetchval("SELECT array_agg(subscription) FROM receiver") == ["s1"]
    finally:
        await conn.close()
