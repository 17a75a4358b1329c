"""The messages about a pod: its peers are lists that belong together."""

import pytest
from muster.contracts.pods import RolePeers
from pydantic import ValidationError

PEERS = {"role": "w", "addresses": ["a", "b"], "addressOf": [1, None], "ports": {"x": [[1], []]}}


def test_a_task_without_a_place_keeps_its_place_in_the_lists() -> None:
    text = RolePeers.model_validate(PEERS).model_dump_json(exclude_none=True)
    assert RolePeers.model_validate_json(text).address_of == (1, None)
    assert '"addressOf":[1,null]' in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"addressOf": [0, 2]}, "addressOf 2: there are 2 addresses"),
        ({"addressOf": [-1, 0]}, "addressOf -1: there are 2 addresses"),
        ({"ports": {"x": [[1]]}}, "ports x: not as many entries as addressOf, 2"),
    ],
)
def test_lists_that_do_not_belong_together_are_not_read(
    changed: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        RolePeers.model_validate(PEERS | changed)
