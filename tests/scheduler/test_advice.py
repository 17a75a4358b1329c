"""Which moves would free cells, as the Scheduler answers it."""

from typing import Any

from muster.contracts.node_orders import Order
from scheduler.domain.state import State
from scheduler_answers import served

Kit = Any


async def test_operators_are_told_which_moves_would_free_cells(kit: Kit) -> None:
    state: State = kit.state(*(kit.report(f"n{n}", gpus=2) for n in range(3)))
    for number, name in enumerate("abc"):
        for node in range(3):
            state.order(f"n{node}", Order.NONE if node == number else Order.CORDON)
        state.request(kit.gang(name, *kit.pods(name, 1, gpus=1)), 0.0, 0.0)
        kit.decide(state, 0.0)
    for node in range(3):
        state.order(f"n{node}", Order.NONE)
    kit.decide(state, 10.0)
    async with served(state) as (_, client):
        told = (await client.get("/advice?cells=1")).json()
        assert (told["asOf"], told["reason"]) == (state.core.cycles, None)
        assert (told["gpus"], told["isLeast"], told["freeAlready"]) == (1, True, 0)
        (move,) = told["moves"]
        (pod,) = move["pods"]
        assert [pod["from"]["node"]] == told["cells"]
        assert pod["to"]["node"] != pod["from"]["node"]
        assert (move["gpus"], move["isSurplus"], move["class"]) == (1, False, "guaranteed")
        assert move["lostGpuSeconds"] == told["lostGpuSeconds"] > 0
        no = (await client.get("/advice?cells=2")).json()
        assert (no["cells"], no["moves"], no["reason"]["code"]) == ([], [], "room")
        assert no["reason"]["numbers"]["free"] == 3
        assert (await client.get("/advice?level=shelf")).status_code == 404
        assert (
            await client.get(f"/advice?chain={told['chain']}&level={told['cell']}")
        ).json() == told
