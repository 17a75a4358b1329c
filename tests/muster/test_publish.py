"""The published documents agree with the contracts, and no change breaks a released reader."""

import copy
import json
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alerting.app import TOPICS_FOLLOWED as alerting_followed
from alerting.handlers import RECEIVED_TOPICS as alerting_topics
from documents import publish, schemas
from documents.compatibility import breaks
from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker
from launcher.handlers import RECEIVED_TOPICS as launcher_topics
from muster.bus import Outgoing
from muster.contracts.jobs import JobStatus
from muster.contracts.model import Model
from muster.contracts.notices import DeadLetter
from muster.contracts.services import SERVICE_STARTED
from muster.contracts.topics import DEAD_LETTER, TOPICS, Service, dead_letter_topic
from muster.records import headers
from rest.cluster import TOPICS as rest_cluster
from rest.domain.event_stream import TOPICS as rest_streamed
from rest.handlers.act import REQUESTED as rest_requested
from rest.handlers.publish import TOPICS as rest_settings
from rest.handlers.updates import TOPICS as rest_updates
from scheduler.handlers import RECEIVED_TOPICS as scheduler_topics
from scheduler.watch import HEARTBEAT, REPORTED, SETTINGS

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = publish.examples(DOCS)
DOCUMENT = json.loads((DOCS / "asyncapi.json").read_text())
GOLDEN = sorted((DOCS / "schemas" / "released").glob("*/golden/*.json"))


def model_of(name: str) -> type[Model]:
    return TOPICS[name].model if name in TOPICS else DeadLetter


def test_the_committed_documents_are_up_to_date_and_break_nobody() -> None:
    assert publish.stale(DOCS) == []
    assert publish.broken(DOCS) == []


def test_each_topic_has_an_example() -> None:
    assert set(EXAMPLES) == {*TOPICS, "dead-letter"}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda it: f"{it.parts[-3]}/{it.stem}")
def test_records_of_released_versions_are_read_as_they_were_meant(path: Path) -> None:
    published = json.loads(path.read_text())
    read = model_of(path.stem).model_validate(published).model_dump(mode="json", by_alias=True)
    assert_contains(read, published)


def assert_contains(read: Any, published: Any) -> None:
    """All that was published is still there; what readers add for themselves does not matter."""
    match published:
        case dict():
            for key, value in published.items():
                assert_contains(read[key], value)
        case list():
            assert len(read) == len(published)
            for one, other in zip(read, published, strict=True):
                assert_contains(one, other)
        case _:
            assert read == published


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_are_valid_for_both_kinds_of_schema(name: str) -> None:
    schema = schemas.document(model_of(name))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(EXAMPLES[name])
    payload = DOCUMENT["components"]["messages"][name]["payload"]
    Draft7Validator(payload | {"components": DOCUMENT["components"]}).validate(EXAMPLES[name])


def test_all_references_of_the_asyncapi_document_lead_somewhere() -> None:
    for reference in references(DOCUMENT):
        found: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]


def test_names_of_components_are_such_as_the_specification_allows() -> None:
    for part in DOCUMENT["components"].values():
        assert [name for name in part if not re.fullmatch(r"[\w.-]+", name)] == []


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_each_topic_is_a_channel_with_its_senders_and_its_readers() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    operations = {
        name: (operation["action"], operation["channel"]["$ref"], operation["tags"])
        for name, operation in DOCUMENT["operations"].items()
        if not name.endswith(".dead-letter")
    }
    declared = {}
    for topic in TOPICS.values():
        channel = f"#/channels/{topic.name}"
        assert DOCUMENT["channels"][topic.name]["address"] == topic.name
        for action, services in (("send", topic.senders), ("receive", topic.readers)):
            for service in services:
                tags = [{"name": service.value}]
                declared[f"{service}.{action}.{topic.name}"] = (action, channel, tags)
    assert operations == declared


@pytest.mark.parametrize(
    ("service", "topics"),
    [
        (Service.ALERTING, (*alerting_topics, *alerting_followed)),
        (Service.LAUNCHER, launcher_topics),
        (
            Service.REST,
            (*rest_updates, *rest_cluster, *rest_settings, *rest_streamed, rest_requested),
        ),
        (Service.SCHEDULER, (*scheduler_topics, REPORTED, HEARTBEAT, SETTINGS)),
    ],
)
def test_the_readers_of_a_topic_are_the_services_that_follow_it(
    service: Service, topics: tuple[str, ...]
) -> None:
    start = f"{service}.receive."
    documented = {it.removeprefix(start) for it in DOCUMENT["operations"] if it.startswith(start)}
    read = {topic for topic in topics if not topic.endswith(DEAD_LETTER)}
    read.add(SERVICE_STARTED)  # muster.incarnation reads it, in every service
    assert read == documented - {"dead-letter"}


@pytest.mark.parametrize("traceparent", [None, f"00-{'a' * 32}-{'b' * 16}-01"])
def test_the_headers_of_records_are_as_documented(traceparent: str | None) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    record = Outgoing("job-updated", "j1", b"{}", "launcher/job/j1/1", at, traceparent)
    made = headers(TOPICS["job-updated"], record, Service.LAUNCHER.value)
    schema = DOCUMENT["components"]["messages"]["job-updated"]["headers"]
    Draft7Validator(schema | {"components": DOCUMENT["components"]}).validate(made)
    assert set(made) <= set(DOCUMENT["components"]["schemas"]["CloudEventHeaders"]["properties"])


BASE = schemas.document(JobStatus)


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    """The schema of a job's status with one thing changed; ``...`` removes it."""
    made = copy.deepcopy(BASE)
    place: Any = made
    for step in path[:-1]:
        place = place[step]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return made


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (changed("properties", "attempt", to=...), "attempt: the field is gone"),
        (changed("properties", "attempt", "type", to="string"), "attempt: its type was integer"),
        (changed("properties", "attempt", "default", to=1), "attempt: a value that is left out"),
        (changed("required", to=[*BASE["required"], "reason"]), "reason: the field may be missing"),
        (changed("required", to=[*BASE["required"], "fresh"]), "fresh: a new field is required"),
        (changed("required", to=BASE["required"][1:]), "job: old readers need the field"),
        (
            changed("$defs", "JobState", schemas.KNOWN_VALUES, to=["WAITING", "unknown"]),
            "state: the value 'RUNNING' is gone",
        ),
        (
            changed("$defs", "TaskStatus", "properties", "node", to=...),
            "taskRoles[].tasks[].node: the field is gone",
        ),
        (
            changed(
                "$defs", "TaskStatus", "properties", "exitCode", "anyOf", 0, "type", to="string"
            ),
            "taskRoles[].tasks[].exitCode: its type was integer and is string",
        ),
        (
            changed("properties", "submittedAt", "format", to="date"),
            "submittedAt: its type was string (date-time) and is string (date)",
        ),
        (
            changed("$defs", "TaskStatus", "properties", "ports", "additionalProperties", to=True),
            "taskRoles[].tasks[].ports: its additionalProperties were",
        ),
    ],
)
def test_a_change_that_breaks_a_reader_is_found(new: dict[str, Any], problem: str) -> None:
    assert any(found.startswith(problem) for found in breaks(BASE, new)), breaks(BASE, new)


@pytest.mark.parametrize(
    "new",
    [
        changed("description", to="Other words."),
        changed("properties", "fresh", to={"type": "string", "default": ""}),
        changed(
            "$defs",
            "JobState",
            schemas.KNOWN_VALUES,
            to=[*BASE["$defs"]["JobState"][schemas.KNOWN_VALUES], "PAUSED"],
        ),
    ],
)
def test_a_change_that_readers_can_live_with_passes(new: dict[str, Any]) -> None:
    assert breaks(BASE, new) == []


def test_a_stale_or_lost_document_is_a_problem(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(DOCS / "schemas", docs / "schemas")
    for path in publish.generated(docs):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DOCS.parent / path.relative_to(tmp_path), path)
    assert publish.stale(docs) == []
    (docs / "schemas" / "JobStatus.json").write_text("{}")
    (docs / "schemas" / "Former.json").write_text("{}")
    (tmp_path / "deploy/monitoring/rules/former.yaml").write_text("{}")
    assert [problem.split("/")[-1] for problem in publish.stale(docs)] == [
        "JobStatus.json is stale: run `make generate` and commit what it writes",
        "Former.json is generated no more: remove it",
        "former.yaml is generated no more: remove it",
    ]
    released = docs / "schemas" / "released" / "0.1.0"
    (released / "Former.json").write_text("{}")
    topics = json.loads((released / "topics.json").read_text())
    (released / "topics.json").write_text(json.dumps(topics | {"job-sung": "JobSong"}))
    assert publish.broken(docs) == [
        "Former of 0.1.0 is gone",
        "topic job-sung of 0.1.0: carried JobSong, carries None",
    ]


def test_a_released_version_is_written_once(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(DOCS / "schemas" / "examples", docs / "schemas" / "examples")
    publish.release(docs, "9.9.9")
    assert publish.broken(docs) == []
    with pytest.raises(FileExistsError):
        publish.release(docs, "9.9.9")


def test_every_service_takes_part() -> None:
    services = {service.value for service in Service}
    assert {name.split(".")[0] for name in DOCUMENT["operations"]} == services


def test_each_reader_may_send_what_it_rejects() -> None:
    letters = dead_letter_topic("job-updated")
    assert letters.senders == (Service.REST, Service.ALERTING)
    assert letters.readers == (Service.ALERTING,)
