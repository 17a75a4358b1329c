"""Plain scalars have their meaning in YAML 1.2."""

import math

import pytest
from muster.protocol.scalars import convert, resolve


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("y", "y"),
        ("12:30:00", "12:30:00"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("0777", 777),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("", None),
        ("~", None),
        ("null", None),
        ("True", True),
        ("false", False),
        ("tRUE", "tRUE"),
        ("-12", -12),
        ("+3", 3),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-", "-"),
        (".", "."),
        ("1.0.0", "1.0.0"),
        ("84820935288cab69", "84820935288cab69"),
        ("-.inf", -math.inf),
        ("<<", "<<"),
    ],
)
def test_a_plain_scalar_has_its_meaning_in_yaml_1_2(text: str, value: object) -> None:
    resolved = resolve(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(float(str(resolve(".nan"))))


def test_endless_digits_cost_nothing() -> None:
    assert isinstance(resolve("9" * 100_000), float)


@pytest.mark.parametrize(
    ("text", "tag", "value"),
    [("1.0", "str", "1.0"), ("1", "float", 1.0), ("7", "int", 7), ("true", "bool", True)],
)
def test_a_tag_decides(text: str, tag: str, value: object) -> None:
    assert convert(text, f"tag:yaml.org,2002:{tag}") == value


@pytest.mark.parametrize(("text", "tag"), [("x", "int"), ("1.5", "int"), ("no", "bool")])
def test_a_tag_that_does_not_fit_is_refused(text: str, tag: str) -> None:
    with pytest.raises(ValueError, match=tag):
        convert(text, f"tag:yaml.org,2002:{tag}")
