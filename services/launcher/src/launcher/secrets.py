"""The secrets of a job, opened for a moment to be sealed to the agents of its pods."""

from collections.abc import Sequence

import structlog
from muster.contracts.secrets import JobSecrets, PodSecrets
from muster.sealing import seal_again, unseal
from pydantic import ValidationError

from launcher.domain.model import Receiver, Reseal

_log = structlog.get_logger()


def resealing(keys: Sequence[str]) -> Reseal:
    """How a Launcher with these private keys, the present one first, reseals."""

    def reseal(job: str, sealed: str, receivers: Sequence[Receiver]) -> list[str] | None:
        secrets = _open(job, sealed, keys)
        if secrets is None:
            return None
        return [seal_again(_for_pod(secrets, to), to.key, keys[0]) for to in receivers]

    return reseal


def _open(job: str, sealed: str, keys: Sequence[str]) -> JobSecrets | None:
    try:
        secrets = JobSecrets.model_validate_json(unseal(sealed, keys))
    except ValidationError:  # its text has the input
        problem = "they are of an unknown form"
    except ValueError as error:
        problem = str(error)
    else:
        if secrets.job == job:
            return secrets
        problem = "they are those of another job"
    _log.error("a job's secrets can't be used", job=job, error=problem)
    return None


def _for_pod(secrets: JobSecrets, receiver: Receiver) -> str:
    pull = secrets.pulls.get(receiver.role)
    found = PodSecrets(pod=receiver.pod, values=secrets.values, pull=pull)
    return found.model_dump_json(exclude_defaults=True)
