"""Jobs of all kinds, and ways for their pods to end, for random histories."""

import hypothesis.strategies as st
from launcher_peers import failure
from muster.contracts.jobs import JobSpec, TaskRoleSpec
from muster.contracts.verdicts import Behavior, Fault


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Small jobs with all kinds of policies."""
    roles = tuple(
        TaskRoleSpec(
            name=f"r{number}",
            instances=draw(st.integers(1, 3)),
            min_instances=draw(st.sampled_from([None, None, 1, number])),
            min_failed_instances=draw(st.sampled_from([1, 1, -1, 2])),
            min_succeeded_instances=draw(st.sampled_from([-1, -1, 1, 2])),
            task_retry_count=draw(st.sampled_from([0, 1, -1])),
            cpu=1,
            memory_mb=100,
            gpus=1,
            ports={"http": 1},
            command="true",
        )
        for number in range(draw(st.integers(1, 2)))
    )
    return JobSpec(
        job_retry_count=draw(st.sampled_from([0, 0, 1, 2, -1])),
        gang=draw(st.booleans()),
        time_limit_s=draw(st.sampled_from([None, None, 3600])),
        task_roles=roles,
    )


def least_of(role: TaskRoleSpec) -> int:
    """So many of its tasks a gang can't do without."""
    return role.instances if role.min_instances is None else role.min_instances


verdicts = st.sampled_from(
    [
        failure(Behavior.UNKNOWN),
        failure(Behavior.PERMANENT),
        failure(Behavior.TRANSIENT, Fault.PLATFORM, -1010),
        failure(Behavior.TRANSIENT_CONFLICT, Fault.PLATFORM, 251),
    ]
)
