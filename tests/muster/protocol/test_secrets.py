"""The secrets of a job file: found where it uses them, and masked wherever it is shown."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import given
from muster.protocol import ProtocolError, parse_job
from muster.references import fill_in, references

JOB = """\
protocolVersion: 2
name: one
type: job
prerequisites:
  - {{type: dockerimage, name: image, uri: x{auth}}}
  - {{type: dockerimage, name: plain, uri: x}}
taskRoles:
  worker:
    instances: 1
    dockerImage: image
    resourcePerInstance: {{cpu: 1, memoryMB: 1, gpu: 0}}
    commands:
      - '{command}'
  other:
    instances: 1
    dockerImage: plain
    resourcePerInstance: {{cpu: 1, memoryMB: 1, gpu: 0}}
    commands: ['true']
"""


def a_file(secrets: str = "", auth: str = "", command: str = "true") -> str:
    return JOB.format(auth=f", auth: {auth}" if auth else "", command=command) + secrets


def problems(text: str) -> list[tuple[str, int | None, str]]:
    with pytest.raises(ProtocolError) as caught:
        parse_job(text.encode())
    return [(each.path, each.line, each.message) for each in caught.value.problems]


def masked_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: masked_value(each) for name, each in value.items()}
    return [masked_value(each) for each in value] if isinstance(value, list) else "******"


def test_only_what_is_used_is_taken_by_its_reference() -> None:
    secrets = "secrets: {a: marker-a, deep: {b: [0, 007]}, unused: marker-c}\n"
    job = parse_job(a_file(secrets, command="x <% $secrets.a %> <%$secrets.deep.b[1]%>").encode())
    assert job.secrets is not None
    assert job.secrets.values == {"$secrets.a": "marker-a", "$secrets.deep.b[1]": "007"}
    assert job.spec.task_roles[0].command == "x <% $secrets.a %> <%$secrets.deep.b[1]%>"
    assert fill_in(job.spec.task_roles[0].command, job.secrets.values) == "x marker-a 007"
    assert "marker" not in repr(job)


def test_a_job_that_uses_none_has_none() -> None:
    job = parse_job(a_file("secrets: {a: marker}\n").encode())
    assert job.secrets is None
    assert "marker" not in job.text


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("<% $secrets.b %>", "has no `b`"),
        ("<% $secrets %>", "fields of its own"),
        ("<% $secrets.a.b %>", "has no `b`"),
        ("<% $secrets..a %>", "can't be read"),
    ],
)
def test_a_secret_that_is_not_defined_is_a_problem(reference: str, why: str) -> None:
    ((path, line, message),) = problems(a_file("secrets: {a: marker}\n", command=reference))
    assert (path, line) == ("taskRoles.worker.commands[0]", 13)
    assert why in message
    assert "marker" not in message
    ((_, _, message),) = problems(a_file(command="<% $secrets.a %>"))
    assert "the file has no `secrets`" in message


def test_the_one_who_pulls_an_image_goes_with_its_roles() -> None:
    auth = "{username: me, password: '<% $secrets.p %>', registryuri: r.example}"
    job = parse_job(a_file("secrets: {p: marker}\n", auth).encode())
    assert job.secrets is not None
    ((role, pull),) = job.secrets.pulls.items()
    assert (role, pull.username, pull.password, pull.registry) == (
        "worker",
        "me",
        "marker",
        "r.example",
    )
    assert job.secrets.values == {}
    assert auth in job.text, "a reference needs no mask"
    job = parse_job(a_file(auth="{username: me, password: marker}").encode())
    assert job.secrets is not None
    assert job.secrets.pulls["worker"].password == "marker"
    assert '{username: me, password: "******"}' in job.text


@pytest.mark.parametrize(
    "secrets",
    [
        "secrets: {a: marker, b: {c: [marker, 2]}} # kept\n",
        "secrets: {a: marker,\n  b: {c: [marker,\n 2]}}\n",
        "secrets:\n  # old: marker\n  a: marker\n  b: {c: [marker, 2]}\n  # marker\n",
        "secrets:\n  a: |\n    marker\n    ker\n  b:\n    c:\n    - >-\n      marker\n    - 2\n\n",
        "'secrets': # why\n  \"a\": 'mar''ker'\n  b: {c: [\"mar\\\"ker\", marker\n    marker]}\n",
    ],
)
@pytest.mark.parametrize("more", ["", "extras: {x: 1}\n"])
def test_the_file_is_kept_line_by_line_with_masks(secrets: str, more: str) -> None:
    text = a_file(secrets + more, "{password: marker}")
    kept = parse_job(text.encode()).text
    assert "ker" not in kept.replace("worker", "").replace("dockerImage", "").replace(
        "dockerimage", ""
    )
    assert kept.count("\n") == text.count("\n")
    lines = text.splitlines()
    assert kept.splitlines()[5:17] == lines[5:17]
    assert not more or kept.splitlines()[-1] == lines[-1]
    before, after = yaml.safe_load(text), yaml.safe_load(kept)
    assert after["secrets"] == masked_value(before["secrets"])
    assert after["prerequisites"][0]["auth"] == {"password": "******"}
    for each in (before, after):
        del each["secrets"], each["prerequisites"]
    assert before == after


def test_a_file_of_json_is_masked_as_well() -> None:
    value = yaml.safe_load(a_file(auth="{password: marker}")) | {
        "secrets": {"\U0001f600": "marker \U0001f600", "b": [{"c": "marker"}]},
        "extras": {"last": "\U0001f600"},
    }
    for indent in (None, 2):
        kept = parse_job(json.dumps(value, indent=indent).encode()).text
        assert "marker" not in kept
        shown = yaml.safe_load(kept)
        assert shown["secrets"] == masked_value(value["secrets"])
        assert shown["extras"] == value["extras"]


@pytest.mark.parametrize(
    "secrets",
    [
        "secrets: {a: &x marker}\nparameters: {b: *x}\n",
        "? secrets\n: {a: marker}\n",
        "parameters: &p {secrets: {a: marker}}\n<<: *p\n",
        "secrets: &all {a: marker}\nextras: {again: *all}\n",
    ],
)
def test_secrets_that_can_not_be_masked_for_sure_are_refused(secrets: str) -> None:
    found = problems(a_file(secrets))
    assert [message for _, _, message in found if "plainly" in message], found
    assert "marker" not in str(found)


def test_masks_are_no_secrets() -> None:
    text = a_file("secrets: {a: x, b: {c: [y]}}\n", "{password: z}")
    again = problems(parse_job(text.encode()).text)
    assert [path for path, _, _ in again] == [
        "prerequisites[0].auth.password",
        "secrets.a",
        "secrets.b.c[0]",
    ]


def test_a_file_whose_secrets_would_not_fit_a_record_is_refused() -> None:
    secrets = "secrets: {a: '" + "x" * 200_000 + "', b: '" + "\\" * 300_000 + "'}\n"
    ((path, _, message),) = problems(a_file(secrets, command="<% $secrets.a %>" * 2))
    assert path == "taskRoles.worker.commands[0]"
    assert "longer than 262144 characters" in message
    one = a_file(secrets.replace("x" * 200_000, "\\" * 250_000), command="<% $secrets.a %>")
    two = one.replace("commands: ['true']", "commands: ['<% $secrets.b %>']")
    (_, _, message), *_ = problems(two)
    assert "longer than" in message


@given(
    st.lists(st.sampled_from(["<%", "%>", " ", "$secrets", ".a", ".b", "<% $secrets.a %>", "x"])),
    st.text(alphabet="<%> $secrta."),
)
def test_a_value_is_never_read_again(pieces: list[str], value: str) -> None:
    text = "".join(pieces)
    parts, position = [], 0
    for found in references(text):
        if found.inner == "$secrets.a":
            parts.append(text[position : found.start])
            position = found.end
    assert fill_in(text, {"$secrets.a": value}) == value.join([*parts, text[position:]])
