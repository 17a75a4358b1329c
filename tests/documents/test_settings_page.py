"""The page of settings has every setting of every service, with its default."""

from documents import settings_page
from muster.settings import PREFIX


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
