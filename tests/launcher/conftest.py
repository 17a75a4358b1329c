"""What the Launcher's tests share: a database pool, and jobs as their requests."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from launcher.settings import LauncherSettings
from muster.contracts.jobs import Execution, JobRequest, JobSpec, TaskRoleSpec
from muster.db import Pool, open_pool
from pydantic import SecretStr

SUBMITTED = datetime(2026, 1, 1, tzinfo=UTC)

MakeRequest = Callable[..., JobRequest]


@pytest.fixture
def settings(database_url: str) -> LauncherSettings:
    """Settings with short waits."""
    return LauncherSettings(
        database_url=SecretStr(database_url),
        retry_backoff_first_s=0.01,
        retry_backoff_longest_s=0.05,
        conflict_shortest_s=0.01,
        conflict_longest_s=0.05,
        quiet_s=0.01,
        quiet_new_s=0.02,
        timer_poll_s=0.02,
    )


@pytest.fixture
async def pool(settings: LauncherSettings) -> AsyncIterator[Pool]:
    """A pool on the Launcher's schema."""
    opened = await open_pool(settings, "launcher")
    yield opened
    await opened.close()


@pytest.fixture
def make_request() -> MakeRequest:
    """Makes the request for a job; ``roles`` is name → number of tasks, ``role`` goes to each."""

    def make(
        job: str,
        roles: dict[str, int] | None = None,
        role: dict[str, Any] | None = None,
        **spec: Any,
    ) -> JobRequest:
        return JobRequest(
            revision=1,
            job=job,
            name=f"name-{job}",
            user="ada",
            execution=Execution.START,
            submitted_at=SUBMITTED,
            spec=JobSpec(
                task_roles=tuple(
                    TaskRoleSpec(
                        name=name,
                        instances=number,
                        cpu=1,
                        memory_mb=100,
                        gpus=1,
                        ports={"http": 1},
                        command="true",
                        **(role or {}),
                    )
                    for name, number in (roles or {"worker": 1}).items()
                ),
                **spec,
            ),
        )

    return make
