"""The Scheduler with quick settings, also as a process of its own, which can be stopped and
killed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus_logins import bus_settings
from muster.service_keys import SCHEDULER, service_key
from scheduler.settings import SchedulerSettings
from service_auth import CLUSTER_KEY

PATIENT_S = 60.0


def quick_settings(database_url: str, bootstrap: str) -> SchedulerSettings:
    """Quick, but for leases: a node that this machine plays too slowly is not lost, nor is a leader
    followed that it starves for a moment. Where nodes are to be lost these are short, and begin
    anew where this process was starved for a second.
    """
    return SchedulerSettings(
        database_url=database_url,
        **bus_settings(bootstrap),
        http_port=0,
        service_key=service_key(CLUSTER_KEY, SCHEDULER),
        fetch_wait_busy_ms=40,
        fetch_wait_idle_ms=40,
        bus_watch_s=0.1,
        database_connections=4,
        settle_s=0.5,
        catch_up_s=PATIENT_S,
        stall_s=1.0,
        lease_timeout_s=PATIENT_S,
        many_silent=1.0,
        probe_s=0.2,
        probe_window_s=1.5,
        watch_s=0.1,
        idle_transaction_s=3.0,
        leader_renew_s=0.1,
        leader_expiry_s=0.5,
        leader_take_s=4.0,
    )


@asynccontextmanager
async def scheduler_process(
    settings: SchedulerSettings, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of the service. ``log``: where its output goes; it is told where a test fails."""
    names = settings.model_fields_set - {"database_url", "service_key"}
    environment = {f"MUSTER_{name.upper()}": str(getattr(settings, name)) for name in names}
    environment["MUSTER_DATABASE_URL"] = settings.database_url.get_secret_value()
    environment["MUSTER_SERVICE_KEY"] = settings.service_key.get_secret_value()
    with log.open("wb") as output:
        started = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scheduler", env=dict(os.environ) | environment, stdout=output
        )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGCONT)
            started.kill()
        await started.wait()
        print(await asyncio.to_thread(log.read_text))
