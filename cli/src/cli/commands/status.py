"""`muster status`: what runs on this machine, and where."""

from typing import Any

from cli.client import Client, CommandError, Exit
from cli.commands.session import Output, client
from cli.embedded.process import is_alive
from cli.home import find_home, read_json
from cli.output import Format, print_facts, print_json, print_table
from cli.separation import separation


def status(*, output: Output = Format.TABLE) -> Exit:
    """What runs here, and where. The exit status is 0 when all of it is ready."""
    home = find_home()
    running = read_json(home / "running.json")
    if not is_alive(running.get("pid")):
        return _elsewhere(client(), output)
    content = {
        "home": str(home),
        "pid": running["pid"],
        "phase": running["phase"],
        "rest": running["rest"],
        "kafka": running["kafka"],
        "database": running["database"],
        "simulatedGpus": running["simulatedGpus"],
        "users": _users(client()),
        "services": running["services"],
    }
    if output is Format.JSON:
        print_json(content)
    else:
        _print(content)
    all_ready = all(part["state"] == "ready" for part in content["services"].values())
    return Exit.OK if all_ready and content["phase"] == "up" else Exit.NOT_ALL_READY


def _users(server: Client) -> str | None:
    try:
        return separation(server)
    except CommandError:  # REST is away, or nobody is logged in here
        return None


def _elsewhere(server: Client, output: Format) -> Exit:
    """Nothing was started here: is there a REST that commands would talk to?"""
    info = server.get("/info").json()
    users = _users(server)
    content = {
        "rest": server.url,
        "kafka": None,
        "database": None,
        "users": users,
        "services": {},
        "info": info,
    }
    if output is Format.JSON:
        print_json(content)
    else:
        known = {str(name): value for name, value in info.items()}
        print_facts({"REST": server.url, **known, "Users": users})
    return Exit.OK


def _print(content: dict[str, Any]) -> None:
    gpus = content["simulatedGpus"]
    print_facts(
        {
            "REST": content["rest"],
            "Kafka": content["kafka"],
            "Database": content["database"],
            "GPUs": f"{gpus} SIMULATED" if gpus else None,
            "Users": content["users"],
            "Home": content["home"],
            "Phase": content["phase"],
        }
    )
    print_table(
        ("PART", "STATE", "PID", "RESTARTS", "ADDRESS"),
        [
            (name, part["state"], part["pid"], part["restarts"], part["address"])
            for name, part in content["services"].items()
        ],
    )
