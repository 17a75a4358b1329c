"""Data prerequisites: those in a storage are mounted, all others are plain text."""

import pytest
from muster.protocol import NamedStorage, ParsedJob, ProtocolError, parse_job

JOB = """\
protocolVersion: 2
name: digits
type: job
prerequisites:
  - {{name: python, type: dockerimage, uri: 'python:3.11'}}
  - {{name: digits, type: data, uri: [{uris}]}}
taskRoles:
  worker:
    dockerImage: python
    data: {used}
    resourcePerInstance: {{cpu: 1, memoryMB: 64, gpu: 0}}
    commands: ['train <% $data.uri[0] %> <% $data.name %> <% $data.uri %>']
extras: {extras}
"""


def parsed(uris: str, extras: str = "{}", used: str = "digits") -> ParsedJob:
    return parse_job(JOB.format(uris=uris, extras=extras, used=used).encode())


def command(job: ParsedJob) -> str:
    return job.spec.task_roles[0].command


def test_data_in_a_storage_are_a_path_of_its_tasks() -> None:
    job = parsed("'storage://sets/digits/train', 'storage://sets', 'http://host/x'")
    uris = "/mnt/sets/digits/train,/mnt/sets,http://host/x"
    assert command(job) == f"train /mnt/sets/digits/train digits {uris}"
    place = "prerequisites[1].uri[0]"
    assert job.data == (NamedStorage("sets", "/mnt/sets", place, 6, 38, is_data=True),)
    assert job.storages is None
    assert [warning.path for warning in job.warnings] == ["prerequisites[0].uri"]


def test_data_in_a_storage_that_the_job_mounts_are_where_it_mounts_it() -> None:
    job = parsed("'storage://sets/digits'", "{storages: [{name: sets, mountPath: /mnt/x}]}")
    assert command(job) == "train /mnt/x/digits digits /mnt/x/digits"
    assert job.data == ()


def test_other_data_are_plain_text() -> None:
    job = parsed("'hdfs://host:9000/digits'")
    assert command(job).split()[1] == "hdfs://host:9000/digits"
    assert (job.data, job.storages) == ((), None)
    assert "nothing is fetched" in job.warnings[1].message


@pytest.mark.parametrize(
    "uri", ["storage://", "storage:///x", "storage://sets/../etc", "storage://s x"]
)
def test_a_uri_that_is_no_path_in_a_storage_is_refused(uri: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        parsed(f"'{uri}'")
    (problem,) = refused.value.problems
    assert (problem.path, problem.line) == ("prerequisites[1].uri[0]", 6)
    assert "write `storage://NAME/folder`" in problem.message
