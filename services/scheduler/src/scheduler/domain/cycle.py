"""One cycle: every waiting gang that fits is placed, and every other is told why it waits.

Order: highest priority, then oldest, then lowest id. A gang that fits may pass one that does not.
"""

from muster.contracts.model import Reason

from scheduler.domain.cluster import Cluster
from scheduler.domain.gangs import Gang
from scheduler.domain.model import Decision, Deferred, Placed, Refused, Shape
from scheduler.domain.packing import place
from scheduler.domain.queue import candidates
from scheduler.domain.reasons import never_fits, waits


def run_cycle(cluster: Cluster, now: float) -> list[Decision]:
    """Decide about everything that waits, as far as the policy's bound allows; ``has_more`` says
    whether another cycle is due at once. The cluster is changed accordingly.
    """
    cluster.cycle += 1
    cluster.has_more = False
    cluster.search_left = cluster.policy.search_steps
    decisions: list[Decision] = []
    # 1. What was only avoided for a time counts again.
    cluster.expire_ports(now)
    # 2. Place what fits; the first gang of a shape that does not fit speaks for all of its shape.
    changed: list[Shape] = []
    for shape, name in candidates(cluster.queue, cluster.generation):
        if len(decisions) == cluster.policy.cycle_gangs:
            cluster.has_more = True
            break
        gang = cluster.gangs[name]
        placements = place(cluster, name, gang.waiting(), gang.places.values(), now)
        if placements is not None:
            cluster.settle(gang, placements)
            decisions.append(Placed(name, placements))
        elif _explain(cluster, gang, shape, now):
            changed.append(shape)
    # 3. Refuse what could never fit, once the cluster is known.
    if cluster.is_settled(now):
        decisions += _refuse(cluster)
    # 4. Tell those whose reason is new, and now and then those whose numbers changed.
    decisions += _defer(cluster, changed, now)
    return decisions


def _explain(cluster: Cluster, gang: Gang, shape: Shape, now: float) -> bool:
    """Note on its line why the shape does not fit; whether the code changed."""
    line = cluster.queue.lines[shape]
    reason = waits(cluster, gang.name, gang.waiting(), shape, now)
    is_changed = line.reason is None or line.reason.code != reason.code
    line.failed_at, line.reason = cluster.generation, reason
    return is_changed


def _refuse(cluster: Cluster) -> list[Decision]:
    """Refuse what can't fit; each shape is judged once for each set of nodes."""
    refused: dict[str, Reason] = {}
    for shape, line in cluster.queue.lines.items():
        if line.reason is not None and line.judged_at != cluster.shape_version:
            line.judged_at = cluster.shape_version
            reason = never_fits(cluster, shape)
            if reason is not None:
                few = line.waiting[: cluster.policy.cycle_gangs - len(refused)]
                refused.update((name, reason) for _, _, name in few)
                if len(few) < len(line.waiting):
                    line.judged_at = -1
                    cluster.has_more = True
    for name in sorted(refused):
        cluster.refuse(cluster.gangs[name], refused[name])
    return [Refused(name, refused[name]) for name in sorted(refused)]


def _defer(cluster: Cluster, changed: list[Shape], now: float) -> list[Decision]:
    queue = cluster.queue
    names: list[str] = []
    if cluster.is_settled(now):  # at a start the nodes come one by one: no word for each
        lines = [queue.lines[shape] for shape in changed if shape in queue.lines]
        queue.unexplained.update(order[2] for line in lines for order in line.waiting)
        names = _stale(cluster, now)
    names += sorted(queue.unexplained)[: cluster.policy.cycle_gangs]
    told: dict[str, Reason] = {}
    for name in names:
        gang = cluster.gangs[name]
        reason = queue.lines[cluster.shape(gang)].reason
        if reason is None:  # its shape is tried by the next cycle
            continue
        queue.unexplained.discard(name)
        if _is_news(gang, reason, now, cluster):
            told[name] = reason
            gang.said, gang.said_at = reason, now
            queue.said.append((now, name))
    cluster.has_more |= bool(queue.unexplained)
    return [Deferred(name, reason) for name, reason in told.items()]


def _is_news(gang: Gang, reason: Reason, now: float, cluster: Cluster) -> bool:
    if gang.said is None or gang.said.code != reason.code:
        return True
    return now - gang.said_at >= cluster.policy.defer_again_s and gang.said != reason


def _stale(cluster: Cluster, now: float) -> list[str]:
    """Waiting gangs whose last word about it is old enough to be said again; a bounded number."""
    queue, names = cluster.queue, list[str]()
    while queue.said and len(names) < cluster.policy.defer_again_gangs:
        at, name = queue.said[0]
        if now - at < cluster.policy.defer_again_s:
            break
        queue.said.popleft()
        gang = cluster.gangs.get(name)
        if gang is not None and cluster.is_waiting(name) and gang.said_at == at:
            if gang.said == queue.lines[cluster.shape(gang)].reason:
                gang.said_at = now
                queue.said.append((now, name))
            else:
                names.append(name)
    return names
