"""What carries out the agent's decisions about pods, whatever pods are on this node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from muster.contracts.model import Reason

from runtime_agent.domain.ending import Ending
from runtime_agent.domain.pods import Pod, Stopping
from runtime_agent.domain.report import Offer
from runtime_agent.domain.usage import TaskUsage


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a pod: since when it runs, how it ended (None: not yet), when it last reported
    that its gang's work is saved, why it does not run yet, and the address that it has of its own.
    Unix times.
    """

    pod: str
    started_at_s: float | None = None
    ended_at_s: float | None = None
    ending: Ending | None = None
    checkpointed_at_s: float | None = None
    reason: Reason | None = None
    address: str | None = None


class Runner(Protocol):
    """What carries out the agent's decisions. All of it can be repeated."""

    def launch(self, pod: Pod) -> None:
        """Have the pod started, unless it ever was. Raises OSError where that is not possible."""

    def stop(self, name: str, stopping: Stopping) -> None:
        """Have the pod end."""

    def look(self, pods: Iterable[Pod]) -> list[Seen]:
        """What has become of these pods."""

    def has(self, name: str) -> bool:
        """Whether the node has anything of a pod of this name."""

    def forget(self, name: str) -> None:
        """The pod's work is no longer needed."""

    async def ready(self) -> None:
        """Returns once `names` is complete."""

    def names(self) -> list[str]:
        """Every pod of which the node has anything."""

    def end_now(self, name: str, *, of_another_machine: bool) -> bool:
        """Have a pod end that the journal does not know; True where nothing of it is left. To be
        called again until then. `of_another_machine`: so is its record. Raises OSError.
        """

    def owns(self, pid: int) -> bool:
        """Whether the process is a pod's; True where that is not known yet."""

    def usage(self, pod: Pod) -> TaskUsage:
        """What a live pod uses now, as far as it is counted here."""

    def offer(self) -> Offer:
        """What the node offers to pods, and what speaks against it."""

    async def run(self) -> None:
        """The runner's own work beside these calls, until cancelled."""

    async def close(self) -> None:
        """The agent ends; pods go on."""
