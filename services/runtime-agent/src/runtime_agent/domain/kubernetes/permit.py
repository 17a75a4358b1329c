"""The start permit: a task's command begins once, whatever Kubernetes does with its container.

The container sends its ticket and a nonce of its own. The agent records the nonce before it
answers. Another nonce under the same ticket is a second start, and gets nothing.
"""

from __future__ import annotations

import hmac
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import assert_never

from runtime_agent.domain.kubernetes.manifest import BIN_DIR, FOR_PERMIT, RUN_DIR
from runtime_agent.domain.pods import Phase, Pod

_NONCE = re.compile(r"[0-9a-f]{32}")
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BUSYBOX = f"{BIN_DIR}/bin/busybox"
_COMMAND = f"{RUN_DIR}/command"
_OPTIONS = "-o errexit -o nounset -o pipefail"
_SHELL_OPTIONS = "-o errexit -o nounset"
"""Not every shell knows pipefail."""
_SHELLS = (
    (f"{BIN_DIR}/bin/sh", _OPTIONS),
    ("/bin/sh", _SHELL_OPTIONS),
    ("/usr/bin/bash", _OPTIONS),
    ("/bin/bash", _OPTIONS),
)
"""The last one that there is runs the command."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the agent keeps of a pod's permit. `nonce`: of the container that has it; empty: none
    has. `boot`: of the machine when it was given. `address`: from where its container asks; empty:
    that is not known yet.
    """

    ticket: str
    nonce: str = ""
    boot: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a container sends, and from where."""

    ticket: str
    nonce: str
    address: str


class Answer(Enum):
    """What a container is answered. `FIRST`: its nonce is to be recorded, then as `GRANTED`.
    `SECOND`: as `DENIED`, and its pod had a permit already. `LATER`: it asks again.
    `STRANGE_ADDRESS`: as `DENIED`, with the right ticket from an address that is not the pod's.
    """

    LATER = "later"
    FIRST = "first"
    SECOND = "second"
    GRANTED = "granted"
    DENIED = "denied"
    STRANGE_ADDRESS = "strange-address"

    def is_kept(self, kept: Ticket) -> bool:
        """Whether a container that ends without its permit may have ended for it. Anybody can ask
        without a ticket, and with one from anywhere once its pod runs.
        """
        is_strange = self is Answer.STRANGE_ADDRESS and not kept.nonce
        return is_strange or self is Answer.SECOND


def decide(pod: Pod | None, kept: Ticket | None, asked: Asked, boot: str) -> Answer:
    """Whether the container may begin. `pod`: as journalled, None: unknown."""
    if pod is None or kept is None or pod.phase is Phase.ENDED:
        return Answer.DENIED
    if not hmac.compare_digest(kept.ticket.encode(), asked.ticket.encode()):
        return Answer.DENIED
    if _NONCE.fullmatch(asked.nonce) is None:
        return Answer.DENIED
    if not kept.address:
        return Answer.LATER
    if kept.address != asked.address:
        return Answer.STRANGE_ADDRESS
    if kept.nonce:
        is_same = kept.nonce == asked.nonce and kept.boot == boot
        return Answer.GRANTED if is_same else Answer.SECOND
    return Answer.DENIED if pod.stop is not None else Answer.FIRST


def why_none(answer: Answer, kept: Ticket, asked: Asked) -> str | None:
    """Why the container gets no permit; None: it gets one, or is to ask again."""
    match answer:
        case Answer.DENIED:
            return "The ticket or the nonce is wrong, or the pod has ended or is to stop."
        case Answer.SECOND:
            return "Another container of the pod has the permit."
        case Answer.STRANGE_ADDRESS:
            return (
                f"Its container's request came from {asked.address}, but the pod has"
                f" {kept.address}, as with NAT between pods and nodes."
            )
        case Answer.FIRST | Answer.GRANTED | Answer.LATER:
            return None
        case _:
            assert_never(answer)


def first_line(key: str) -> str:
    """Only this agent knows it; the container compares its digest with its `MUSTER_PROOF`. So no
    other process on the agent's port can answer.
    """
    return f": {key}"


def proof_of(key: str) -> str:
    """What the container expects of the answer's first line."""
    return sha256(f"{first_line(key)}\n".encode()).hexdigest()


def script(key: str, environment: Mapping[str, str], command: str) -> str:
    """Shell text that becomes the task: it sets the variables and runs the command in the image's
    own shell, or in ours where it has none. Nothing of it shows in a list of processes.
    """
    plain = {name: each for name, each in environment.items() if _SHELL_NAME.fullmatch(name)}
    lines = [first_line(key), f"unset {' '.join(FOR_PERMIT)}"]
    lines += [f"export {name}={shlex.quote(each)}" for name, each in plain.items()]
    lines.append('export PAI_WORK_DIR="$PWD"')  # the image's, as OpenPAI has it
    for shell, options in _SHELLS:
        lines.append(f"if [ -x {shell} ]; then set -- {shell} {shlex.quote(options)}; fi")
    # In the file: as arguments they would bind what the image's BASH_ENV names, too.
    lines.append(f"printf 'set %s; %s' \"$2\" {shlex.quote(command)} > {_COMMAND}")
    lines.append(f"{_BUSYBOX} rm -f {RUN_DIR}/reply {RUN_DIR}/request {RUN_DIR}/status")
    # Names that no shell can export, as of a role with a hyphen.
    odd = [shlex.quote(f"{name}={each}") for name, each in environment.items() if name not in plain]
    begin = f"exec {_BUSYBOX} env {' '.join(odd)}" if odd else "exec"
    lines.append(f'{begin} "$1" {_COMMAND}')
    return "\n".join(lines) + "\n"
