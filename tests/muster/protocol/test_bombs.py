"""Small files that would become large: refused, and what they cost stays in proportion."""

import tracemalloc

import pytest
from muster.protocol import ProtocolError, parse_job

HEAD = "protocolVersion: 2\nname: bomb\ntype: job\n"
ROLE = "instances: 1, dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 1, gpu: 0%s}"
IMAGE = "prerequisites: [{type: dockerimage, name: i, uri: none}]\n"
MAX_PEAK_BYTES = 48 * 2**20
"""A file of 1 MiB is held a few times over; none of these may cost more."""


def wrong_references() -> str:
    lines = "        <% $x %>\n" * 50_000
    return f"{HEAD}taskRoles:\n  a:\n    commands:\n      - |\n{lines}"


def references_of_values() -> str:
    """Values that make up references when they are filled in."""
    lines = "        <% $parameters.x %>\n" * 9_000
    return (
        f"{HEAD}parameters: {{x: '<% $x %>'}}\ntaskRoles:\n  a:\n    commands:\n      - |\n{lines}"
    )


def one_value_in_many_roles() -> str:
    role = f"{{{ROLE % ''}, commands: ['<% $parameters.x %>']}}"
    roles = "".join(f"  r{n}: {role}\n" for n in range(700))
    return f"{HEAD}{IMAGE}parameters: {{x: '{'y' * 250_000}'}}\ntaskRoles:\n{roles}"


def a_list_of_one_value() -> str:
    many = ",".join(["*x"] * 5_000)
    role = f"{{{ROLE % ''}, commands: ['<% $parameters.l %>']}}"
    return (
        f"{HEAD}{IMAGE}parameters:\n  x: &x '{'y' * 200_000}'\n  l: [{many}]\n"
        f"taskRoles:\n  a: {role}\n"
    )


def many_ports() -> str:
    ports = ", ports: {" + ", ".join(f"p{n}: 1000" for n in range(8_000)) + "}"
    return f"{HEAD}{IMAGE}taskRoles:\n  a: {{{ROLE % ports}, commands: [x]}}\n"


def roles_by_prerequisites() -> str:
    listed = "".join(f"- {{type: script, name: s{n}}}\n" for n in range(1900))
    role = "{script: z, data: z, output: z, commands: [a]}"
    roles = "".join(f"  r{n}: {role}\n" for n in range(900))
    return f"{HEAD}prerequisites:\n{listed}taskRoles:\n{roles}"


@pytest.mark.timeout(60)  # each takes a fraction of a second, and took minutes
@pytest.mark.parametrize(
    "bomb",
    [
        wrong_references,
        references_of_values,
        one_value_in_many_roles,
        a_list_of_one_value,
        many_ports,
        roles_by_prerequisites,
    ],
)
def test_a_bomb_is_refused_at_little_cost(bomb: object) -> None:
    assert callable(bomb)
    data = bomb().encode()
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as caught:
            parse_job(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 1 <= len(caught.value.problems) <= 100
    assert peak < MAX_PEAK_BYTES


def test_warnings_are_bounded_and_the_rest_is_counted() -> None:
    roles = "".join(f"  r{n}: {{{ROLE % ''}, commands: [x]}}\n" for n in range(150))
    hints = ", ".join(f"r{n}: {{fast: 1}}" for n in range(150))
    extras = f"extras: {{hivedScheduler: {{taskRoles: {{{hints}}}}}}}\n"
    job = parse_job(f"{HEAD}{IMAGE}taskRoles:\n{roles}{extras}".encode())
    assert len(job.warnings) == 101
    assert job.warnings[-1].message == "51 more like these are not shown"


def test_places_are_right_in_texts_of_many_lines() -> None:
    role = f"  a:\n    {{{ROLE % ''}, commands: [x, \"<% $one %>\",\n      '<% $two %>']}}\n"
    with pytest.raises(ProtocolError) as caught:
        parse_job(f"{HEAD}{IMAGE}taskRoles:\n{role}".encode())
    assert [(p.line, p.column) for p in caught.value.problems] == [(7, 103), (8, 8)]
