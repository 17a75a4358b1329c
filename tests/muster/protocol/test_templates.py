"""References are filled in, once and within bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster.protocol.document import Node, read_document
from muster.protocol.templates import MAX_RENDERED_CHARACTERS, render

_, PARAMETERS = read_document(
    b"""
lr: 1.0
flag: True
list: [a, 2, c]
deep: {er: [{x: found}]}
learning-rate: 5e-4
empty:
odd: '<% $parameters.lr %>'
half: '% $parameters.lr %'
"""
)
SCOPES: dict[str, Node | None] = {
    "parameters": PARAMETERS,
    "script": None,
    "output": None,
    "data": read_document(b"{name: mnist, uri: ['http://a/b']}")[1],
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("--lr <% $parameters.lr %>", "--lr 1.0"),
        ("<%$parameters.lr%>", "1.0"),
        ("<% $parameters.flag %>", "True"),
        ("<% $parameters.list[1] %>", "2"),
        ("<% $parameters.list %>", "a,2,c"),
        ("<% $parameters.deep.er[0].x %>", "found"),
        ("<% $parameters.learning-rate %>", "5e-4"),
        ("wget <% $data.uri[0] %> <% $data.name %>", "wget http://a/b mnist"),
        ("<% $secrets.key %>", "<% $secrets.key %>"),
        ("<% erb %> <%", "<% erb %> <%"),
        ("no references", "no references"),
    ],
)
def test_a_reference_becomes_the_value_as_written(text: str, result: str) -> None:
    rendered = render(text, SCOPES)
    assert rendered.errors == ()
    assert rendered.text == result


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<% $parameters.nope %>", "no `nope`"),
        ("<% $parameters.list[7] %>", "no `7`"),
        ("<% $parameters.lr.x %>", "$parameters.lr has no `x`"),
        ("<% $script.name %>", "names no `script`"),
        ("<% $things.name %>", "is unknown"),
        ("<% $parameters..x %>", "can't be read"),
        ("<% $parameters.deep %>", "fields of its own"),
        ("<% $parameters.empty %>", "empty"),
        ("<% $parameters.odd %>", "made up"),
        ("<<% $parameters.half %>>", "made up"),
        ("<% $secretsx.y %>", "is unknown"),
    ],
)
def test_a_field_without_a_value_is_an_error(text: str, why: str) -> None:
    (error,) = render(text, SCOPES).errors
    assert why in error.message


def test_a_small_text_does_not_become_a_large_one() -> None:
    _, scope = read_document(b"x: '" + b"y" * 100_000 + b"'")
    rendered = render("<% $parameters.x %>" * 1000, SCOPES | {"parameters": scope})
    assert len(rendered.errors) == 1
    assert len(rendered.text) <= MAX_RENDERED_CHARACTERS


PIECES = st.lists(
    st.sampled_from(
        [
            "<%",
            "%>",
            " ",
            "$parameters",
            ".lr",
            ".odd",
            ".half",
            "[0]",
            ".list",
            "$secrets",
            "<% $parameters.lr %>",
            "<% $parameters.odd %>",
            "<% $parameters.half %>",
            "<% $secrets.a %>",
            "%",
            "<",
            ">",
            "x",
        ]
    ),
    max_size=12,
).map("".join)


@given(PIECES)
def test_rendering_twice_is_rendering_once(text: str) -> None:
    once = render(text, SCOPES)
    if not once.errors:
        again = render(once.text, SCOPES)
        assert again.errors == ()
        assert again.text == once.text
