"""What every record and stored value is made of: frozen pydantic models that old and new readers
share.

Readers ignore fields they don't know and take an unknown enum value as ``unknown``, so a newer
writer never breaks them. JSON names are camelCase (OpenPAI's habit); Python names are snake_case.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


def json_name(name: str) -> str:
    """The JSON name of a field: ``memory_mb`` becomes ``memoryMB``."""
    return to_camel(name).replace("Mb", "MB")


class Model(BaseModel):
    """A value that travels or is stored as JSON."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=json_name,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        use_enum_values=False,
    )


class OpenEnum(StrEnum):
    """An enum that takes a value from the future as ``unknown``. Each subclass has a member
    UNKNOWN.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls("unknown") if isinstance(value, str) and value != "unknown" else None


Revision = Annotated[int, Field(ge=0, le=2**62)]
"""A revision as databases keep it; milliseconds of a clock reach 2**62 in no time that matters."""


class Reason(Model):
    """Why something waits or is refused: the same text in REST, command line, portal and events."""

    code: str
    text: str
    numbers: dict[str, int | float | str | None] = {}


class StateMessage(Model):
    """A record with its sender's complete state of one subject.

    ``revision`` is one sequence per sender and subject over all topics. ``seen`` is the highest
    revision of the other side that the sender has applied. The exchange sets both, never a handler.
    """

    revision: Revision = 0
    seen: Revision = 0
