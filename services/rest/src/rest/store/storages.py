"""Storages that administrators set."""

from dataclasses import astuple

from muster.db import Connection, Pool, fetch

from rest.domain.storages import Storage


async def read(pool: Pool) -> list[Storage]:
    """All of them, by name."""
    async with pool.acquire() as conn:
        return await fetch(Storage, conn, "SELECT * FROM storage ORDER BY name")


async def put(conn: Connection, storage: Storage) -> None:
    """Make it, or set all of it anew."""
    await conn.execute(_PUT, *astuple(storage))


async def remove(conn: Connection, name: str) -> bool:
    """Whether there was one."""
    done: str = await conn.execute("DELETE FROM storage WHERE name = $1", name)
    return done != "DELETE 0"


_PUT = """
    INSERT INTO storage (name, claim, host_path, sub_path, is_read_only, is_default, users,
        virtual_clusters)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (name) DO UPDATE
    SET claim = excluded.claim, host_path = excluded.host_path, sub_path = excluded.sub_path,
        is_read_only = excluded.is_read_only, is_default = excluded.is_default,
        users = excluded.users, virtual_clusters = excluded.virtual_clusters
"""
