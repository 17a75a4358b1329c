"""The page of settings has every setting of every service, with its default."""

import pytest
from cli.deploy.known_settings import RULES
from cli.deploy.setting_rules import is_taken
from documents import settings_page
from muster.settings import PREFIX
from pydantic import ValidationError
from pydantic_settings import BaseSettings

SERVICES = {name: kind for name, kind in settings_page.PROGRAMS.items() if name != "`muster up`"}


def test_every_setting_of_every_program_is_on_the_page() -> None:
    page = settings_page.page()
    for kind in settings_page.PROGRAMS.values():
        for name in kind.model_fields:
            assert f"`{PREFIX}{name.upper()}`" in page


def test_a_section_has_the_variable_its_default_and_its_meaning() -> None:
    lines = settings_page.page().splitlines()
    assert "| `MUSTER_SMTP_PORT` | `587` | The mail server's port. |" in lines
    port = "| `MUSTER_REST_PORT` or `MUSTER_HTTP_PORT` | `8080` | The API; 0: any free port. |"
    assert port in lines
    assert "| `MUSTER_NODE` | the host name | The node's name. |" in lines


@pytest.mark.parametrize("kind", [*SERVICES.values()], ids=[*SERVICES])
@pytest.mark.parametrize(
    "text", ["", "abc", "-2", "0", "1", "1.5", "10", "1_0", "70000", "yes", "none", "INFO", "inf"]
)
def test_a_check_of_values_agrees_with_the_service(kind: type[BaseSettings], text: str) -> None:
    ruled = [name for name in kind.model_fields if RULES.get(f"{PREFIX}{name.upper()}")]
    try:
        kind(**dict.fromkeys(ruled, text))  # type: ignore[arg-type]
        wrong = set()
    except ValidationError as error:
        # What a function of the class refuses is no part of its schema.
        wrong = {
            str(e["loc"][0]) for e in error.errors() if e["loc"] and e["type"] != "value_error"
        }
    refused = {name for name in ruled if not is_taken(RULES[f"{PREFIX}{name.upper()}"], text)}
    assert refused == {name for name in ruled if {name, f"{PREFIX}{name}"} & wrong}
