"""What is sealed: the secrets of a job on the way to the Launcher, and to one pod's agent.

None of these is ever a record or a row in clear. Each names its subject, so that a sealed text
that is put into another job's or pod's message opens nothing.
"""

from pydantic import Field

from muster.contracts.model import Model


class PullCredentials(Model):
    """Who pulls a private image. ``registry`` empty: Docker Hub."""

    username: str = ""
    password: str = Field("", repr=False)
    registry: str = ""


class Secrets(Model):
    """The secrets of a job file that are used. ``values``: by the reference in a command, without
    its brackets: ``$secrets.name``. ``pulls``: by task role.
    """

    values: dict[str, str] = Field({}, repr=False)
    pulls: dict[str, PullCredentials] = {}


class JobSecrets(Secrets):
    """REST seals it to the Launcher."""

    job: str


class PodSecrets(Model):
    """The Launcher seals it to the pod's agent. ``pull``: of the pod's image."""

    pod: str
    values: dict[str, str] = Field({}, repr=False)
    pull: PullCredentials | None = None
