"""Names that are never used again, made from ids; and how to read them."""

from dataclasses import dataclass

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: sorts as it counts

NAME_CHARACTERS = 256


def new_id(now_ms: int, random_bits: int) -> str:
    """A 26-character id that sorts by time: 48 bits of milliseconds, 80 random bits (the layout
    of ULID).
    """
    number = (now_ms & (2**48 - 1)) << 80 | (random_bits & (2**80 - 1))
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True, slots=True)
class PodName:
    """The parts of a pod's name. Attempts count from 0."""

    job: str
    job_attempt: int
    role: str
    index: int
    task_attempt: int

    def __str__(self) -> str:
        return f"{self.job}-{self.job_attempt}-{self.role}-{self.index}-{self.task_attempt}"


def parse_pod(pod: str) -> PodName:
    """Read a pod's name. Raises ValueError where it is none."""
    job, job_attempt, role, index, task_attempt = pod.split("-")
    return PodName(job, int(job_attempt), role, int(index), int(task_attempt))


def gang_name(job: str, job_attempt: int) -> str:
    """The gang of a job attempt. Where tasks may start singly, a gang has its one pod's name."""
    return f"{job}-{job_attempt}"


def job_of(name: str) -> str:
    """The job id in a gang's or pod's name."""
    return name.split("-", 1)[0]


def is_name(text: str) -> bool:
    """Whether a text can be a row's key: not empty, short enough for an index, and without the NUL
    character, which PostgreSQL rejects. A foreign record may hold any text.
    """
    return 0 < len(text) <= NAME_CHARACTERS and "\x00" not in text
