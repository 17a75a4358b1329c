"""The commands of docs/install.md that make and restore a backup, on a database of PostgreSQL."""

import os
import re
import subprocess
from pathlib import Path

from cli.embedded.binaries import readable_binaries
from cli.embedded.postgres import EmbeddedPostgres

PAGE = Path(__file__).parents[2] / "docs/install.md"
PASSWORD = "/run/secrets/password"
OLD = "CREATE SCHEMA rest; CREATE TABLE rest.account AS SELECT 'ann' AS username"
NEWER = "DELETE FROM rest.account; CREATE TABLE rest.of_a_newer_version ()"
"""What an upgrade after the backup did."""
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'rest'"


def in_the_pod(program: str) -> str:
    """What `kubectl exec` runs there."""
    scripts = re.findall(r"exec (?:-i )?postgres-0 -- sh -\w*c '([^']*)'", PAGE.read_text())
    [found] = [each for each in scripts if program in each]
    return str(found)


def test_a_backup_from_before_an_upgrade_is_restored_without_newer_tables(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "postgres", fsync=False) as server:
        binaries = readable_binaries(server.home, None) / "bin"
        host, _, port = server.address.partition(":")
        environment = {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PGHOST": host,
            "PGPORT": port,
        }

        def run(script: str, given: bytes = b"") -> bytes:
            script = script.replace(PASSWORD, str(server.home / "password"))
            command = ["sh", "-euc", script]
            done = subprocess.run(
                command, input=given, env=environment, capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr.decode()
            return done.stdout

        def ask(sql: str) -> str:
            return run(f'psql -Atq "{server.dsn}" -c "{sql}"').decode().strip()

        ask(OLD)
        backup = run(in_the_pod("pg_dump"))
        ask(NEWER)
        for _ in range(2):  # again: as after one that was cut off
            run(in_the_pod("pg_restore"), backup)
            assert ask(TABLES) == "account"
            assert ask("SELECT username FROM rest.account") == "ann"
