"""Which jobs use a Kubernetes node itself, and whether their virtual cluster may. REST asks at
submission, and an agent before it creates a pod.
"""

from collections.abc import Collection, Iterable, Mapping

RDMA = "rdma"
"""The counted resource of InfiniBand and RoCE cards: one of each resource ``rdma/…`` of a node."""
RDMA_PREFIX = f"{RDMA}/"
ALL = "*"


def uses_node_network(instances: Iterable[int]) -> bool:
    """By the numbers of tasks of a job's roles. Tasks that have peers find each other by address
    and port; a single task needs nobody.
    """
    return sum(instances) > 1


def uses_rdma(resources: Mapping[str, int]) -> bool:
    """Whether a task with these counted resources locks memory for network cards."""
    asked = [name for name, count in resources.items() if count]
    return any(name == RDMA or name.startswith(RDMA_PREFIX) for name in asked)


def needs_host(instances: Iterable[int], resources: Iterable[Mapping[str, int]]) -> bool:
    """Whether a job's tasks need what Pod Security refuses to ordinary pods."""
    return uses_node_network(instances) or any(map(uses_rdma, resources))


def is_permitted(virtual_cluster: str, permitted: Collection[str]) -> bool:
    """Whether its jobs may."""
    return virtual_cluster in permitted or ALL in permitted
