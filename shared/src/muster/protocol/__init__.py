"""The job file: OpenPAI's protocol, version 2. Pure: bytes in, a job's specification out, or one
error that has all problems with their lines.
"""

from muster.protocol.checks import IMAGE_WITHOUT_EFFECT
from muster.protocol.document import MAX_BYTES
from muster.protocol.parse import ParsedJob, parse_job
from muster.protocol.problems import ProtocolError
from muster.protocol.rename import renamed
from muster.protocol.requests import PRIORITIES, Named, NamedStorage
from muster.protocol.shape import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    MAX_STORAGES,
    JobFile,
    job_file_schema,
)

__all__ = [
    "HIGHEST_PRIORITY",
    "IMAGE_WITHOUT_EFFECT",
    "LOWEST_PRIORITY",
    "MAX_BYTES",
    "MAX_STORAGES",
    "PRIORITIES",
    "JobFile",
    "Named",
    "NamedStorage",
    "ParsedJob",
    "ProtocolError",
    "job_file_schema",
    "parse_job",
    "renamed",
]
