"""Who may make and end mutes, and how many."""

from datetime import UTC, datetime, timedelta
from typing import Any

MUTES = "/api/v2/alerts/mutes"


async def body(rest: Any, alert: str = "GpuXid") -> dict[str, str]:
    now: datetime = await rest.runtime.pool.fetchval("SELECT now()")
    return {"alert": alert, "until": (now.astimezone(UTC) + timedelta(hours=1)).isoformat()}


async def test_no_user_ends_a_mute_for_everybody_whatever_their_name(rest: Any) -> None:
    made = await rest.client.post(MUTES, json=await body(rest))
    assert (made.status_code, made.json()["owner"]) == (201, None)
    path = f"{MUTES}/{made.json()['id']}"
    async with await rest.make_user("everybody") as user:
        assert (await user.delete(path)).status_code == 403
        own = await user.post(MUTES, json=await body(rest))
        assert (await user.delete(f"{MUTES}/{own.json()['id']}")).status_code == 200
    assert (await rest.client.delete(path)).status_code == 200
