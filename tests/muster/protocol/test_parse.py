"""Job files are understood, or refused with everything that is wrong and where."""

import json
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from muster.contracts.jobs import TaskRoleSpec
from muster.errors import Problem
from muster.protocol import MAX_BYTES, ParsedJob, ProtocolError, job_file_schema, parse_job

JOB = """\
protocolVersion: 2
name: a-job
type: job
parameters: {epochs: 3}
prerequisites:
  - {name: image, type: dockerimage, uri: 'example/image:1'}
  - {name: digits, type: data, uri: ['http://data/digits']}
taskRoles:
  Worker_1:
    instances: 2
    dockerImage: image
    data: digits
    resourcePerInstance:
      cpu: 1
      memoryMB: 512
      gpu: 1
      ports: {sync: 2}
    commands:
      - wget <% $data.uri[0] %>
      - python train.py --epochs <% $parameters.epochs %>
defaults:
  virtualCluster: default
extras:
  hivedScheduler: {jobPriorityClass: prod}
"""


def edited(old: str, new: str) -> str:
    assert old in JOB
    return JOB.replace(old, new)


def parsed(text: str) -> ParsedJob:
    return parse_job(text.encode())


def role(text: str) -> TaskRoleSpec:
    return parsed(text).spec.task_roles[0]


def problems(text: str | bytes) -> list[tuple[str, int | None, str]]:
    with pytest.raises(ProtocolError) as caught:
        parse_job(text.encode() if isinstance(text, str) else text)
    assert caught.value.code == "InvalidProtocolError"
    return [(p.path, p.line, p.message) for p in caught.value.problems]


def test_a_job_file_becomes_a_specification() -> None:
    job = parsed(JOB)
    assert job.name == "a-job"
    assert job.text == JOB
    assert job.spec.priority == 100
    assert (job.tasks, job.gpus) == (2, 2)
    worker = job.spec.task_roles[0]
    assert worker.name == "Worker_1"
    assert worker.command == "wget http://data/digits\npython train.py --epochs 3"
    assert worker.ports == {"http": 1, "sync": 2}


def test_completion_defaults_are_those_of_openpai() -> None:
    assert (role(JOB).min_failed_instances, role(JOB).min_succeeded_instances) == (1, 2)
    zero = "instances: 2\n    completion: {minFailedInstances: 0, minSucceededInstances: null}"
    assert role(edited("instances: 2", zero)) == role(JOB)
    never = "instances: 2\n    completion: {minFailedInstances: -1, minSucceededInstances: -1}"
    worker = role(edited("instances: 2", never))
    assert (worker.min_failed_instances, worker.min_succeeded_instances) == (-1, -1)


@pytest.mark.parametrize(
    ("name", "priority"), [("crit", 120), ("prod", 100), ("test", 10), ("oppo", -1), ("null", 10)]
)
def test_priority_classes(name: str, priority: int) -> None:
    assert parsed(edited("prod", name)).spec.priority == priority


def test_a_deployments_commands_stand_around_the_roles_own() -> None:
    text = edited(
        "defaults:\n",
        "deployments:\n"
        "  - name: other\n"
        "    taskRoles: {Worker_1: {preCommands: [never]}}\n"
        "  - name: chosen\n"
        "    taskRoles:\n"
        "      Worker_1: {preCommands: ['  first  '], postCommands: ['echo <% $data.name %>']}\n"
        "defaults:\n  deployment: chosen\n",
    )
    assert role(text).command.splitlines() == [
        "first",
        "wget http://data/digits",
        "python train.py --epochs 3",
        "echo digits",
    ]


def test_musters_own_time_limit() -> None:
    text = JOB + "  muster: {timeLimitSeconds: 60}\n"
    assert parsed(text).spec.time_limit_s == 60
    assert parsed(JOB).spec.time_limit_s is None


def test_all_problems_are_listed_at_once_each_with_its_line() -> None:
    text = (
        JOB.replace("name: a-job", "name: a job")
        .replace("instances: 2", "instances: 0")
        .replace("dockerImage: image", "dockerImage: picture")
        .replace("gpu: 1", "gpus: 1")
        .replace("parameters.epochs", "parameters.epoch")
        .replace("jobPriorityClass: prod", "jobPriorityClass: urgent")
    )
    found = problems(text)
    assert [(path, line) for path, line, _ in found] == [
        ("name", 2),
        ("taskRoles.Worker_1.instances", 10),
        ("taskRoles.Worker_1.dockerImage", 11),
        ("taskRoles.Worker_1.resourcePerInstance.gpu", 13),
        ("taskRoles.Worker_1.resourcePerInstance.gpus", 16),
        ("taskRoles.Worker_1.commands[1]", 20),
        ("extras.hivedScheduler.jobPriorityClass", 24),
    ]
    assert "did you mean `gpu`" in found[4][2]
    assert "add `gpu: 0`" in found[3][2]


@pytest.mark.parametrize(
    ("old", "new", "path", "line"),
    [
        ("protocolVersion: 2", "protocolVersion: 3", "protocolVersion", 1),
        ("type: job", "type: task", "type", 3),
        ("type: job", "type: job\nmore: 1", "more", 4),
        (
            "parameters: {epochs: 3}",
            "parameters: {epochs: 3}\njobRetryCount: -1",
            "jobRetryCount",
            5,
        ),
        ("type: dockerimage", "type: image", "prerequisites[0]", 6),
        ("uri: 'example/image:1'", "auth: x", "prerequisites[0].auth", 6),
        ("uri: 'example/image:1'", 'uri: "debian:12\\n"', "prerequisites[0].uri", 6),
        ("uri: 'example/image:1'", "uri: ''", "prerequisites[0].uri", 6),
        ("uri: ['http://data/digits']", "uri: 'x'", "prerequisites[1].uri", 7),
        ("Worker_1:", "worker-1:", "taskRoles.worker-1", 9),
        ("instances: 2", "instances: '2'", "taskRoles.Worker_1.instances", 10),
        ("instances: 2", "instances: true", "taskRoles.Worker_1.instances", 10),
        ("instances: 2", "instances: 2.5", "taskRoles.Worker_1.instances", 10),
        ("data: digits", "data: image", "taskRoles.Worker_1.data", 12),
        ("cpu: 1", "cpu: -1", "taskRoles.Worker_1.resourcePerInstance.cpu", 14),
        ("{sync: 2}", "{}", "taskRoles.Worker_1.resourcePerInstance.ports", 17),
        ("{sync: 2}", "{a-b: 2}", "taskRoles.Worker_1.resourcePerInstance.ports.a-b", 17),
        ("name: digits", "name: image, version: []", "prerequisites[1].version", 7),
        ("virtualCluster: default", "deployment: x", "defaults.deployment", 22),
    ],
)
def test_a_wrong_field_is_refused_at_its_line(old: str, new: str, path: str, line: int) -> None:
    places = [(p.replace('["', ".").replace('"]', ""), n) for p, n, _ in problems(edited(old, new))]
    assert (path, line) in places


def test_another_string_than_the_constant_is_refused() -> None:
    ((_, _, message),) = problems(edited("type: job", "type: task"))
    assert message == "must be `job`, not another string"


def test_names_must_be_unique_within_their_type_only() -> None:
    both = edited("name: digits", "name: image").replace("data: digits", "data: image")
    assert parsed(both).name == "a-job"
    twice = both.replace("type: data, uri: ['http://data/digits']", "type: dockerimage, uri: x")
    assert ("prerequisites[1].name", 7) in [(path, line) for path, line, _ in problems(twice)]


def test_a_value_of_the_wrong_kind_is_never_repeated() -> None:
    assert "marker-secret" not in str(problems(JOB + "secrets: marker-secret\n"))


@pytest.mark.parametrize(
    ("add", "path"),
    [
        ("  com.microsoft.pai.runtimeplugin: [{plugin: ssh}]\n", 'extras["com.microsoft.pai'),
    ],
)
def test_what_is_not_acted_on_is_a_warning_with_its_path(add: str, path: str) -> None:
    warned = [(w.path, w.line) for w in parsed(JOB + add).warnings]
    assert any(place.startswith(path) and line == 25 for place, line in warned)


def test_the_changes_that_a_user_wants_to_know_are_checked() -> None:
    asked = "  jobStatusChangeNotification: {failed: true, retried: false, running: true}\n"
    assert parsed(JOB + asked).spec.notify == ("running", "failed")
    place = "extras.jobStatusChangeNotification"
    (found,) = problems(JOB + "  jobStatusChangeNotification: {fail: true}\n")
    assert found == (f"{place}.fail", 25, "is no field here; did you mean `failed`?")
    (found,) = problems(JOB + "  jobStatusChangeNotification: {failed: yes please}\n")
    assert found[:2] == (f"{place}.failed", 25)


def test_a_job_whose_records_would_not_fit_is_refused() -> None:
    (found,) = problems(edited("instances: 2", "instances: 5000"))
    assert found[:2] == ("taskRoles", 8)
    assert "5000 tasks" in found[2]
    assert parsed(edited("instances: 2", "instances: 500")).tasks == 500
    (found,) = problems(edited("sync: 2", "sync: 1000").replace("instances: 2", "instances: 400"))
    assert found[0] == "taskRoles"


def test_the_size_of_a_pods_request_counts_its_command_and_all_its_peers_ports() -> None:
    many = edited("sync: 2", "sync: 1000").replace("instances: 2", "instances: 124")
    assert parsed(many).tasks == 124
    (found,) = problems(many.replace("python train.py", "y" * 250_000))
    assert "pod-requested" in found[2]
    assert parsed(JOB.replace("python train.py", "y" * 250_000)).tasks == 2


def test_commands_cannot_grow_without_bound() -> None:
    text = edited("epochs: 3", f"epochs: {'9' * 50_000}")
    line = "      - python train.py --epochs <% $parameters.epochs %>\n"
    paths = [path for path, _, _ in problems(text.replace(line, line * 20))]
    assert "taskRoles.Worker_1.commands[6]" in paths


def test_the_schema_for_editors_agrees_with_the_parser() -> None:
    schema = job_file_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(yaml.safe_load(JOB))
    assert not validator.is_valid(yaml.safe_load(edited("gpu: 1", "gpus: 1")))
    assert len(json.dumps(schema)) < 64 * 1024


def expect_only_protocol_errors(data: bytes) -> None:
    lines = max(1, len(data.decode(errors="replace").splitlines()))
    found: tuple[Problem, ...]
    try:
        found = parse_job(data).warnings
    except ProtocolError as error:
        found = error.problems or (Problem("", "no problem is listed", 0),)
    for problem in found:
        assert 1 <= (problem.line or 0) <= lines
        assert (problem.column or 0) >= 1


@given(st.binary(max_size=300))
def test_any_bytes_are_a_job_or_a_protocol_error(data: bytes) -> None:
    expect_only_protocol_errors(data)


@given(st.text(st.sampled_from("a1:-[]{}&*!|>'\"%@`#,?<$~. \n\t\u2028é"), max_size=200))
def test_any_near_yaml_is_a_job_or_a_protocol_error(text: str) -> None:
    expect_only_protocol_errors(text.encode())


@settings(max_examples=200)
@given(
    st.integers(0, len(JOB)),
    st.integers(0, 40),
    st.sampled_from(
        ["", "x", ": ", "- ", "\n", "[", "{", "&a ", "*a", "<% $data %>", "~", "9" * 50]
    ),
)
def test_any_damage_to_a_job_is_a_problem_inside_the_file(at: int, cut: int, put: str) -> None:
    expect_only_protocol_errors((JOB[:at] + put + JOB[at + cut :]).encode())


FREE: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(min_size=1, max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(st.data())
def test_any_value_in_any_field_is_a_job_or_a_protocol_error(data: st.DataObject) -> None:
    job = yaml.safe_load(JOB)
    spots: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            spots.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(job)
    where, key = data.draw(st.sampled_from(spots))
    where[key] = data.draw(FREE)
    expect_only_protocol_errors(json.dumps(job).encode())


def test_the_size_limit_is_that_of_the_file() -> None:
    (found,) = problems(b"#" * (MAX_BYTES + 1))
    assert str(MAX_BYTES) in found[2]
