"""Paths of fields, as people read them and as code finds the field again."""

import pytest
from muster.protocol.problems import join_path, split_path


@pytest.mark.parametrize(
    "parts",
    [
        ("prerequisites", 0, "uri"),
        ("taskRoles", "a-b", "commands", 12),
        ("taskRoles", "1", "2.x"),
        ("a[0]", "", "b"),
        (),
    ],
)
def test_a_path_is_found_again(parts: tuple[str | int, ...]) -> None:
    assert split_path(join_path(parts)) == parts
