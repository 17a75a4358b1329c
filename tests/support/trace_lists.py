"""Job lists and mappings for tests of the importer."""

import json
from typing import Any

import pytest
from scheduler.domain.formats.fields import FormatError
from scheduler.domain.trace.csv_rows import Rows
from scheduler.domain.trace.gangs import Imported, import_rows
from scheduler.domain.trace.mapping_file import read_mapping

GANG: dict[str, Any] = {
    "id": "id",
    "user": {"value": "u"},
    "virtualCluster": {"value": "vc"},
    "priority": {"value": 0},
    "submittedAt": "at",
    "runSeconds": "run",
    "pods": {"gpus": "gpus"},
}
"""The least that a mapping says."""

HEADER = "id,at,run,gpus"


def mapping(*, file: dict[str, Any] | None = None, **gang: Any) -> bytes:
    """A mapping: `GANG` with other fields, and with fields of the file beside it."""
    return json.dumps({"gang": GANG | gang} | (file or {})).encode()


def imported(given: bytes, *lines: str, header: str = HEADER) -> Imported:
    """What comes of a list."""
    read = read_mapping(given)
    rows = Rows((f"{line}\n".encode() for line in (header, *lines)), read.columns)
    assert read.absent(rows.header) == []
    return import_rows(rows, read)


def events(given: bytes, *lines: str, header: str = HEADER) -> list[dict[str, Any]]:
    """The events of a list."""
    return [json.loads(line) for line in imported(given, *lines, header=header).lines()]


def gang(given: bytes, *lines: str, header: str = HEADER) -> dict[str, Any]:
    """The only gang of a list."""
    [event] = events(given, *lines, header=header)
    found: dict[str, Any] = event["gang"]
    return found


def told(given: bytes, *lines: str, header: str = HEADER) -> list[tuple[int, str, str]]:
    """What is wrong with a list."""
    with pytest.raises(FormatError) as refused:
        imported(given, *lines, header=header)
    return [(each.line, each.path, each.message) for each in refused.value.findings]
