"""`muster up` and `muster demo`."""

from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import ValidationError

from cli.client import CommandError, Exit
from cli.standalone.settings import Options, UpSettings
from cli.standalone.up import run_up

Broker = Annotated[
    Literal["embedded", "apache"] | None,
    Parameter(help="Which broker to bring: in memory, or a real Apache Kafka (needs Java 17)."),
]


def up(
    *,
    port: Annotated[int | None, Parameter(help="Where REST listens.")] = None,
    kafka: Broker = None,
    keep_jobs: Annotated[
        bool, Parameter(help="At Ctrl-C, leave running tasks to their supervisors.")
    ] = False,
    demo: Annotated[bool, Parameter(help="Run the sample job at the first start.")] = False,
    monitoring: Annotated[
        bool, Parameter(help="Also run a Prometheus, with the alert rules, that scrapes all of it.")
    ] = False,
) -> Exit:
    """Run everything on this machine until Ctrl-C (twice: at once)."""
    return run_up(
        _settings(port, kafka), Options(keep_jobs=keep_jobs, demo=demo, monitoring=monitoring)
    )


def demo(*, port: int | None = None, kafka: Broker = None) -> Exit:
    """Run everything and the sample job, then stop; the exit status is the job's."""
    return run_up(_settings(port, kafka), Options(ends_with_demo=True))


def _settings(port: int | None, kafka: Literal["embedded", "apache"] | None) -> UpSettings:
    options: dict[str, Any] = {"port": port, "kafka": kafka}
    try:
        return UpSettings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        wrong = [
            f"MUSTER_{str(each['loc'][0]).upper()}: {each['msg']}"
            for each in error.errors(include_url=False, include_input=False)
        ]
        raise CommandError(Exit.USAGE, "Settings are not valid.", tuple(wrong)) from None
