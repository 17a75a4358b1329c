"""Who goes first: priority, fair share, age, and a site's own policy in their place.

`ORDER_BY`: names of policies, of which some may be a site's that are installed beside; what any
order promises is asked of them too.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from math import nan

import pytest
from order_suite import a_cluster, check
from scenes import Scene, config, gang, owning
from scheduler import order_policies
from scheduler.domain.core.config import Policy
from scheduler.domain.core.forest import ConfigError
from scheduler.domain.core.model import Gang, Kind, Placed, Reserved, Role
from scheduler.domain.core.ordering import BUILT_IN, OrderPolicy, UserUsage
from scheduler.order_policies import GuardedGangOrder
from seeds import how_many

FAIR = Policy(order_by=("priority", "fair-share", "age"), half_life_s=1_000.0, is_strict=True)


class Smallest:
    """A site's own: who wants the fewest pods goes first."""

    def rank(self, gang: Gang) -> float:
        return sum(len(role.pods) for role in gang.roles)


class Favoured:
    """A site's own: these users go first."""

    def rank_user(self, usage: UserUsage) -> float:
        return 0.0 if usage.user == "eve" else 1.0


def _never(name: str, how: str) -> None:
    raise AssertionError(f"{name} failed: {how}")


OWN = {"smallest": Smallest(), "favoured": Favoured()}

INSTALLED = [tuple(names.split(",")) for names in [os.environ.get("ORDER_BY")] if names]


@pytest.mark.parametrize(
    "order_by",
    [
        ("priority", "age"),
        ("priority", "fair-share", "age"),
        ("age",),
        ("fair-share",),
        ("priority", "smallest", "age"),
        ("favoured", "smallest"),
        *INSTALLED,
    ],
)
def test_any_order_keeps_its_promises(order_by: tuple[str, ...]) -> None:
    policies = {**OWN, **order_policies.load(_never)}
    for seed in range(how_many(1, deep=5)):
        check(policies, order_by, seed)


def placed(scene: Scene) -> list[str]:
    return [each.gang for each in scene.cycle() if isinstance(each, Placed)]


def a_scene(policy: Policy = FAIR) -> Scene:
    return Scene(config(policy=policy, x=owning(("rack/node", 4))))


def of(user: str, name: str, machines: int = 1, **more: object) -> Gang:
    kind = Kind(4)
    roles = (Role(kind, tuple(f"p{number}" for number in range(machines))),)
    return Gang(name, "x", user, 0, roles, **more)  # type: ignore[arg-type]


def test_who_uses_least_goes_first() -> None:
    scene = a_scene()
    scene.core.request(of("ann", "a1", 3))
    assert placed(scene) == ["a1"]
    scene.core.request(of("ann", "a2", submitted_at=1.0))
    scene.core.request(of("ben", "b1", submitted_at=2.0))
    assert placed(scene) == ["b1"]


def test_who_is_placed_counts_at_once() -> None:
    scene = a_scene()
    for number in range(4):
        scene.core.request(of("ann", f"a{number}", submitted_at=0.0))
    for number in range(4):
        scene.core.request(of("ben", f"b{number}", submitted_at=1.0))
    assert placed(scene) == ["a0", "b0", "a1", "b1"]


def test_what_was_used_fades() -> None:
    scene = a_scene()
    scene.core.request(of("ann", "a1", 4))
    scene.cycle()
    scene.now = 500.0
    scene.leave("a1")
    scene.core.request(of("ben", "b1", 4))
    assert placed(scene) == ["b1"]
    scene.now = 10_000.0
    scene.leave("b1")
    scene.cycle()
    scene.core.request(of("ann", "a2", 4))
    scene.core.request(of("ben", "b2", 4))
    assert placed(scene) == ["a2"]  # ben has used more, and more lately


def test_a_weight_is_due_so_much_more() -> None:
    scene = a_scene(
        Policy(order_by=FAIR.order_by, half_life_s=1.0, weights={"ann": 3.0}, is_strict=True)
    )
    for number in range(4):
        scene.core.request(of("ann", f"a{number}", submitted_at=1.0))
        scene.core.request(of("ben", f"b{number}", submitted_at=0.0))
    assert placed(scene) == ["b0", "a0", "a1", "a2"]


def test_fair_share_converges() -> None:
    """Two users with more work than there is room for use the cluster by their weights, though one
    of them asks for ten times as much.
    """
    core = a_cluster({}, FAIR.order_by)
    used, ends_at = {"ann": 0.0, "ben": 0.0}, dict[str, float]()
    for number in range(600):
        now = number * 10.0
        for name in [name for name, at in ends_at.items() if at <= now]:
            core.release(name)
            del ends_at[name]
        for count in range(10):
            core.request(of("ann", f"a{number}-{count}", submitted_at=now))
        core.request(of("ben", f"b{number}", submitted_at=now))
        for decision in core.cycle(now):
            if isinstance(decision, Placed):
                ends_at[decision.gang] = now + 60.0
                used["ann" if decision.gang.startswith("a") else "ben"] += 60.0
        waiting = [name for name in core.gang_ids() if name not in ends_at]
        for name in [n for n in waiting if int(n[1:].partition("-")[0]) < number - 50]:
            core.release(name)
    assert used["ann"] / used["ben"] == pytest.approx(1.0, rel=0.1)


def test_a_policy_that_is_not_known_is_told() -> None:
    with pytest.raises(ConfigError) as told:
        a_cluster({}, ("priority", "luck"))
    (finding,) = told.value.findings
    assert finding.path == "policy.orderBy[1]"
    assert "'luck'; there are age, fair-share, priority" in finding.message


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, OrderPolicy]:
    """What there is where a site has installed some of its own, one in the place of Muster's."""
    points = EntryPoints(
        EntryPoint(name, f"{__name__}:{what}", order_policies.GROUP)
        for name, what in (("smallest", "Smallest"), ("favoured", "Favoured"), ("age", "Smallest"))
    )
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.value.partition(":")[2]])
    monkeypatch.setattr(order_policies, "entry_points", lambda group: points.select(group=group))
    return order_policies.load(_never)


def test_a_site_offers_its_own_policies(offered: Mapping[str, OrderPolicy]) -> None:
    for name in ("smallest", "age"):
        policy = offered[name]
        assert isinstance(policy, GuardedGangOrder)
        assert isinstance(policy.policy, Smallest)
    assert offered["priority"] is BUILT_IN["priority"]


@pytest.mark.parametrize("order_by", [("priority", "favoured", "age"), ("age",), ("smallest",)])
def test_what_a_site_offers_keeps_the_same_promises(
    offered: Mapping[str, OrderPolicy], order_by: tuple[str, ...]
) -> None:
    check(offered, order_by, seed=7)


class Both(Smallest, Favoured):
    """Of gangs and of users: nobody knows which."""


def _ends() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("load", "how"),
    [
        (lambda: dict, "neither of the methods"),
        (lambda: Both, "both of the methods"),
        (lambda: {}["gone"], "can't be loaded (KeyError: 'gone')"),
        (_ends, "can't be loaded (SystemExit: 3)"),
    ],
)
def test_what_can_not_be_loaded_or_is_no_policy_is_told_and_left_out(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], object], how: str
) -> None:
    points = EntryPoints([EntryPoint(name, "x:y", order_policies.GROUP) for name in ("age", "own")])
    monkeypatch.setattr(EntryPoint, "load", lambda self: load())
    monkeypatch.setattr(order_policies, "entry_points", lambda group: points.select(group=group))
    told = dict[str, str]()
    assert order_policies.load(told.__setitem__) == BUILT_IN
    assert list(told) == ["age", "own"]
    assert all(how in each for each in told.values())


class Broken:
    """A site's own that fails: nobody but a user called `ann` has a rank."""

    def rank(self, gang: Gang) -> float:
        if gang.user == "eve":
            raise KeyError(gang.user)
        if gang.user == "joe":
            raise ValueError("no\n" + "x" * 1_000)
        return nan if gang.user == "ben" else 0.0


def test_who_a_policy_fails_to_rank_goes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("broken", "x:Broken", order_policies.GROUP)])
    monkeypatch.setattr(EntryPoint, "load", lambda self: Broken)
    monkeypatch.setattr(order_policies, "entry_points", lambda group: points.select(group=group))
    every, told = list[str](), list[tuple[str, str]]()
    tell_once = order_policies.once(lambda name, how: told.append((name, how)))

    def failed(name: str, how: str) -> None:
        every.append(how)
        tell_once(name, how)

    core = a_cluster(order_policies.load(failed), ("broken", "age"))
    for age, user in enumerate(("eve", "ben", "ann", "joe")):
        core.request(of(user, user, submitted_at=age))
    decided = [each.gang for each in core.cycle(0.0) if isinstance(each, Placed)]
    assert decided == ["ann", "eve", "ben", "joe"]
    assert told == [("broken", "KeyError: 'eve'; its gang or user goes last")]
    longest = max(every, key=len)
    assert longest.startswith("ValueError: no xxx")
    assert longest.endswith(f"x…; {order_policies.GOES_LAST}")
    assert len(longest) < 250


def test_the_order_is_not_whom_it_costs() -> None:
    """An older gang of a lower priority goes first where the order says so, and preempts nobody."""
    scene = a_scene(Policy(order_by=("age",)))
    scene.asks(gang("high", "x", 4, pods=4, priority=5))
    assert placed(scene) == []
    scene.core.request(gang("old", "x", 4, priority=0, submitted_at=-10.0))
    assert placed(scene) == []


def short(user: str, name: str, at: float, gpus: int = 4, cpu: int = 0) -> Gang:
    """One pod that ends soon."""
    made = gang(name, "x", gpus, cpu=cpu, submitted_at=at, expected_s=300.0)
    return replace(made, user=user)


@pytest.mark.parametrize("next_user", ["ann", "joe"])
def test_cells_are_reserved_by_what_users_have_by_now(next_user: str) -> None:
    """Ann's first gang starts in this cycle. Then whoever has less goes before her, and her second
    one before her later, smaller one.
    """
    scene = Scene(config(policy=Policy(half_life_s=1_000.0), x=owning(("rack/node", 3))))
    scene.core.cordon("n3")
    scene.asks(of("eve", "large", 2, expected_s=100.0), of("eve", "long", expected_s=10_000.0))
    scene.asks(short("ben", "bens", 9.0, cpu=1))
    scene.asks(short("ann", "first", 10.0), short("ann", "anns", 11.0, gpus=2))
    scene.asks(short(next_user, "next", 10.5, gpus=4 if next_user == "ann" else 3))
    scene.leave("large")
    decided = scene.cycle(after_s=100.0)
    assert [each.gang for each in decided if isinstance(each, Placed)] == ["bens", "first"]
    assert [e.gang for e in decided if isinstance(e, Reserved) and e.cells] == ["next"]
