"""A job file's requests to the Scheduler, in OpenPAI's fields and in Muster's: a contradiction is
refused, and a field without effect is a warning.
"""

import pytest
from muster.contracts.jobs import TaskRoleSpec
from muster.protocol import ParsedJob, ProtocolError, parse_job
from muster.protocol.sizes import largest_record

ROLE = "instances: 2, dockerImage: i, commands: [x]"
JOB = f"""\
protocolVersion: 2
name: j
type: job
prerequisites: [{{name: i, type: dockerimage, uri: u}}]
taskRoles:
  ps: {{{ROLE}, resourcePerInstance: {{cpu: 1, memoryMB: 1, gpu: 0}}}}
  work: {{{ROLE}, resourcePerInstance: {{cpu: 1, memoryMB: 1, gpu: 4}}}}
extras:
"""
HIVED, MUSTER = "extras.hivedScheduler", "extras.muster"
HIVED_WORK, MUSTER_WORK = f"{HIVED}.taskRoles.work", f"{MUSTER}.taskRoles.work"


def parsed(hived: str = "", muster: str = "", more: str = "") -> ParsedJob:
    return parse_job(text(hived, muster, more).encode())


def text(hived: str = "", muster: str = "", more: str = "") -> str:
    return f"{JOB}  hivedScheduler: {{{hived}}}\n  muster: {{{muster}}}\n{more}"


def work(job: ParsedJob) -> TaskRoleSpec:
    return job.spec.task_roles[1]


def warned(job: ParsedJob) -> dict[str, str]:
    """The warnings about requests, by path."""
    return {w.path: w.message for w in job.warnings if w.path.startswith("extras")}


def problems(
    hived: str = "", muster: str = "", more: str = ""
) -> list[tuple[str, int | None, str]]:
    with pytest.raises(ProtocolError) as caught:
        parsed(hived, muster, more)
    return [(p.path, p.line, p.message) for p in caught.value.problems]


def test_openpais_wishes_reach_the_specification() -> None:
    job = parsed(
        "jobPriorityClass: prod, lazyPreemptionEnable: true, gangReleaseEnable: false,"
        " ignoreK8sSuggestedNodes: true,"
        " taskRoles: {ps: {pinnedCellId: lab, affinityGroupName: a},"
        " work: {skuType: V100, skuNum: 4, affinityGroupName: a2}}",
        more="  gangAllocation: false\n",
    )
    ps = job.spec.task_roles[0]
    assert (job.spec.priority, job.spec.lazy_preemption, job.spec.gang) == (100, True, False)
    assert (ps.pin, ps.gpu_types, ps.group) == ("lab", (), "a")
    assert (work(job).pin, work(job).gpu_types, work(job).group) == (None, ("V100",), "a2")
    assert job.priority_class == "prod"
    assert warned(job) == {}


def test_musters_own_wishes_reach_the_specification() -> None:
    job = parsed(
        muster="priority: 500, lazyPreemption: false, taskRoles: {ps: {pin: lab},"
        " work: {gpuTypes: [a100, v100, a100], group: g, resources: {rdma: 2, nvme: 1}}}"
    )
    assert (job.spec.priority, job.spec.lazy_preemption) == (500, False)
    assert job.priority_class == "500"
    assert job.spec.task_roles[0].pin == "lab"
    assert work(job).gpu_types == ("a100", "v100")
    assert work(job).group == "g"
    assert work(job).resources == {"nvme": 1, "rdma": 2}
    assert warned(job) == {}


@pytest.mark.parametrize(
    ("muster", "rdma"), [("", 1), ("taskRoles: {work: {resources: {rdma: 2}}}", 2)]
)
def test_openpais_infiniband_is_one_of_the_counted_resource(muster: str, rdma: int) -> None:
    file = text(muster=muster).replace(
        "gpu: 4}", "gpu: 4}, extraContainerOptions: {infiniband: true}"
    )
    job = parse_job(file.encode())
    assert work(job).resources == {"rdma": rdma}
    assert job.spec.task_roles[0].resources == {}
    assert not any("infiniband" in each.path for each in job.warnings)


def test_without_wishes_the_cluster_decides() -> None:
    job = parse_job(JOB.replace("extras:\n", "").encode())
    assert (job.spec.priority, job.spec.lazy_preemption, job.priority_class) == (10, None, None)
    assert (work(job).gpu_types, work(job).pin, work(job).group) == ((), None, None)
    assert (work(job).resources, job.named) == ({}, ())


@pytest.mark.parametrize(
    ("priority", "shown"), [(-1, "oppo"), (0, "0"), (10, "test"), (120, "crit"), (1000, "1000")]
)
def test_a_priority_that_is_a_class_has_its_name(priority: int, shown: str) -> None:
    job = parsed(muster=f"priority: {priority}")
    assert (job.spec.priority, job.priority_class) == (priority, shown)


@pytest.mark.parametrize(
    ("hived", "muster", "path", "line"),
    [
        ("jobPriorityClass: prod", "priority: 5", f"{MUSTER}.priority", 10),
        ("lazyPreemptionEnable: true", "lazyPreemption: true", f"{MUSTER}.lazyPreemption", 10),
        (
            "taskRoles: {work: {skuType: a, pinnedCellId: b}}",
            "",
            f"{HIVED_WORK}.pinnedCellId",
            9,
        ),
        (
            "taskRoles: {work: {skuType: a}}",
            "taskRoles: {work: {gpuTypes: [a]}}",
            f"{MUSTER_WORK}.gpuTypes",
            10,
        ),
        ("", "taskRoles: {work: {gpuTypes: [a], pin: b}}", f"{MUSTER_WORK}.pin", 10),
        (
            "taskRoles: {work: {affinityGroupName: a}}",
            "taskRoles: {work: {group: a}}",
            f"{MUSTER_WORK}.group",
            10,
        ),
    ],
)
def test_a_request_in_both_fields_is_refused_with_the_field_to_keep(
    hived: str, muster: str, path: str, line: int
) -> None:
    ((found, at, message),) = problems(hived, muster)
    assert (found, at) == (path, line)
    assert "keep one of them" in message


@pytest.mark.parametrize("base", ["hived", "muster"])
def test_wishes_of_a_role_that_is_none_are_refused(base: str) -> None:
    ((path, _, message),) = problems(**{base: "taskRoles: {other: {}}"})
    assert path.endswith("taskRoles.other")
    assert message == "names no task role of this job"


def test_one_affinity_group_wants_one_kind_of_cell() -> None:
    roles = "taskRoles: {ps: {skuType: a, affinityGroupName: g}, work: {skuType: %s,"
    roles += " affinityGroupName: g}}"
    ((path, line, message),) = problems(roles % "b")
    assert (path, line) == (f"{HIVED_WORK}.affinityGroupName", 9)
    assert "`ps`" in message
    assert work(parsed(roles % "a")).group == "g"


@pytest.mark.parametrize(
    ("muster", "path"),
    [
        ("priority: 1001", "priority"),
        ("priority: -2", "priority"),
        ("lazyPreemption: 1", "lazyPreemption"),
        ("taskRoles: {work: {gpuTypes: []}}", "taskRoles.work.gpuTypes"),
        ("taskRoles: {work: {gpuTypes: ['']}}", "taskRoles.work.gpuTypes[0]"),
        ("taskRoles: {work: {resources: {rdma: -1}}}", "taskRoles.work.resources.rdma"),
        ("taskRoles: {work: {gpuType: [a]}}", "taskRoles.work.gpuType"),
    ],
)
def test_wishes_that_make_no_sense_are_refused_at_their_place(muster: str, path: str) -> None:
    assert [(p, line) for p, line, _ in problems(muster=muster)] == [(f"{MUSTER}.{path}", 10)]


def test_a_role_chooses_when_nodes_pull_its_image() -> None:
    job = parsed(muster="taskRoles: {work: {imagePullPolicy: IfNotPresent}}")
    assert [role.image_pull_policy for role in job.spec.task_roles] == ["", "IfNotPresent"]
    ((path, line, message),) = problems(muster="taskRoles: {work: {imagePullPolicy: Sometimes}}")
    assert (path, line) == (f"{MUSTER}.taskRoles.work.imagePullPolicy", 10)
    assert message == "must be `Always`, `IfNotPresent` or `Never`, not another string"


@pytest.mark.parametrize(
    ("auth", "policy", "is_refused"),
    [
        ("{username: ann, password: p}", "IfNotPresent", True),
        ("{password: p}", "Never", True),
        ("{username: ann, password: p}", "Always", False),
        ("{}", "Never", False),
    ],
)
def test_a_private_image_is_always_pulled(auth: str, policy: str, is_refused: bool) -> None:
    file = text(muster=f"taskRoles: {{work: {{imagePullPolicy: {policy}}}}}")
    file = file.replace("type: dockerimage,", f"type: dockerimage, auth: {auth},")
    if not is_refused:
        assert work(parse_job(file.encode())).image_pull_policy == policy
        return
    with pytest.raises(ProtocolError) as refused:
        parse_job(file.encode())
    (problem,) = refused.value.problems
    assert (problem.path, problem.line) == (f"{MUSTER}.taskRoles.work.imagePullPolicy", 10)
    assert "must be `Always` for an image with `auth`" in problem.message


def test_a_misspelt_field_is_refused_with_the_right_name() -> None:
    ((_, _, message),) = problems(muster="taskRoles: {work: {gpuType: [a]}}")
    assert message == "is no field here; did you mean `gpuTypes`?"


@pytest.mark.parametrize(
    ("hived", "path", "message"),
    [
        ("gangReleaseEnable: true", "gangReleaseEnable", "as soon as it has ended"),
        ("ignoreK8sSuggestedNodes: false", "ignoreK8sSuggestedNodes", "nobody suggests nodes"),
        ("taskRoles: {work: {skuNum: 2}}", "taskRoles.work.skuNum", "the 4 GPUs of"),
        ("taskRoles: {ps: {skuType: a}}", "taskRoles.ps.skuType", "ask for no GPU"),
        ("taskRoles: {work: {fast: 1}}", "taskRoles.work.fast", "nothing reads it"),
        ("fast: 1", "fast", "nothing reads it"),
        (
            "jobPriorityClass: oppo, lazyPreemptionEnable: true",
            "lazyPreemptionEnable",
            "nothing to lose",
        ),
        (
            "taskRoles: {ps: {affinityGroupName: a}, work: {affinityGroupName: b}}",
            "taskRoles",
            "the job is one gang",
        ),
    ],
)
def test_a_field_without_effect_is_a_warning(hived: str, path: str, message: str) -> None:
    job = parsed(hived)
    assert list(warned(job)) == [f"{HIVED}.{path}"]
    assert message in warned(job)[f"{HIVED}.{path}"]


def test_every_gpu_type_and_pin_is_named_with_its_place() -> None:
    job = parsed(
        "taskRoles: {ps: {pinnedCellId: lab}}",
        "taskRoles: {work: {gpuTypes: [a, b]}}",
    )
    assert [(n.gpu_type, n.pin, n.path, n.line) for n in job.named] == [
        (None, "lab", f"{HIVED}.taskRoles.ps.pinnedCellId", 9),
        ("a", None, f"{MUSTER_WORK}.gpuTypes[0]", 10),
        ("b", None, f"{MUSTER_WORK}.gpuTypes[1]", 10),
    ]


def test_wishes_count_for_the_size_of_the_gangs_record() -> None:
    names = ", ".join(f"{'x' * 90}{n}" for n in range(20))
    many = text(muster=f"taskRoles: {{work: {{gpuTypes: [{names}]}}}}")
    many = many.replace("work: {instances: 2", "work: {instances: 500")
    with pytest.raises(ProtocolError) as caught:
        parse_job(many.encode())
    assert "gang-requested" in caught.value.problems[0].message
    few = parse_job(many.replace("500", "300").encode())
    assert largest_record(few.spec)[0] == "gang-requested"


TIMES = "timeLimitSeconds: 7200, expectedSeconds: 3600, minRunSeconds: 600, checkpointSeconds: 300"


def test_how_long_it_runs_and_where_it_may_reach_the_specification() -> None:
    spec = parsed(muster=f"{TIMES}, borrow: true").spec
    assert (spec.time_limit_s, spec.expected_s) == (7200, 3600)
    assert (spec.min_run_s, spec.checkpoint_s, spec.borrow) == (600, 300, True)
    silent = parsed().spec
    assert (silent.expected_s, silent.min_run_s, silent.checkpoint_s) == (None, None, None)
    assert silent.borrow is False
    assert parsed(muster="timeLimitSeconds: 60, expectedSeconds: 60.0").spec.expected_s == 60


@pytest.mark.parametrize(
    "field",
    [
        "expectedSeconds: 0",
        "minRunSeconds: -1",
        "checkpointSeconds: 1.5",
        "expectedSeconds: 315360001",
        "minRunSeconds: '60'",
        "borrow: 1",
        "borrow: null",
    ],
)
def test_times_that_are_none_are_refused_at_their_line(field: str) -> None:
    ((path, line, _),) = problems(muster=field)
    assert (path, line) == (f"{MUSTER}.{field.split(':')[0]}", 10)


def test_a_job_that_is_ended_before_it_is_done_is_refused() -> None:
    ((path, line, message),) = problems(muster="timeLimitSeconds: 60, expectedSeconds: 61")
    assert (path, line) == (f"{MUSTER}.expectedSeconds", 10)
    assert message == (
        "is above `timeLimitSeconds`, after which the job is ended; lower it, or raise the limit"
    )


def test_an_opportunistic_job_has_nothing_to_borrow() -> None:
    assert warned(parsed(muster="priority: -1, borrow: true")) == {
        f"{MUSTER}.borrow": "has no effect: an opportunistic job runs on whatever is idle"
    }
    assert warned(parsed(muster="priority: 0, borrow: true")) == {}


@pytest.mark.parametrize(("least", "expected"), [("0", 0), ("1", 1), ("2", None), ("null", None)])
def test_how_many_tasks_are_enough_reaches_the_specification(
    least: str, expected: int | None
) -> None:
    job = parsed(muster=f"taskRoles: {{work: {{minInstances: {least}}}}}")
    assert work(job).min_instances == expected
    assert job.spec.task_roles[0].min_instances is None
    assert warned(job) == {}


def test_a_gang_that_needs_more_tasks_than_there_are_is_refused() -> None:
    ((path, line, message),) = problems(muster="taskRoles: {work: {minInstances: 3}}")
    assert (path, line) == (f"{MUSTER_WORK}.minInstances", 10)
    assert message == "is more than the 2 instances; lower it, or raise `instances`"


def test_a_gang_that_needs_no_task_at_all_is_refused() -> None:
    least = "minInstances: 0"
    ((path, line, message),) = problems(muster=f"taskRoles: {{ps: {{{least}}}, work: {{{least}}}}}")
    assert (path, line) == (f"{MUSTER}.taskRoles.ps.minInstances", 10)
    assert message == (
        "is 0 for every task role, so that nothing would have to start; raise one of them"
    )


@pytest.mark.parametrize("least", ["-1", "1.5", "'1'"])
def test_a_number_of_tasks_that_is_none_is_refused_at_its_line(least: str) -> None:
    ((path, line, _),) = problems(muster=f"taskRoles: {{work: {{minInstances: {least}}}}}")
    assert (path, line) == (f"{MUSTER_WORK}.minInstances", 10)


def test_tasks_that_start_singly_are_not_elastic() -> None:
    job = parsed(muster="taskRoles: {work: {minInstances: 1}}", more="  gangAllocation: false\n")
    assert warned(job) == {
        f"{MUSTER_WORK}.minInstances": "has no effect: without `extras.gangAllocation` each task"
        " starts when it can"
    }
    assert work(job).min_instances is None
