"""The SQL files that make a service's tables, and whether a database has run them. Apart from what
runs them: a service only looks.
"""

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.errors import Broken

NO_ADDRESS = (
    "MUSTER_DATABASE_URL is no address of a database; write postgresql://user:password@host:5432/name"
    " and other characters than letters and digits in the password as %XX"
)

EXCHANGE = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True)
class Migration:
    """One SQL file."""

    revision: str
    before: str | None
    path: Path

    @property
    def sql(self) -> str:
        return self.path.read_text()

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def migrations_of(service: str) -> list[Migration]:
    """The migrations of a service's schema, oldest first: ``<package>/migrations/NNNN_what.sql``
    and the exchange's, in one sequence.

    Raises Broken where the service is not installed or two files have one number.
    """
    spec = importlib.util.find_spec(service)
    if spec is None or spec.origin is None:
        raise Broken(f"the package {service} is not installed, so its migrations can't be found")
    own = Path(spec.origin).parent / "migrations"
    files = sorted((*EXCHANGE.glob("*.sql"), *own.glob("*.sql")), key=lambda path: path.name)
    found: list[Migration] = []
    for path in files:
        revision = path.stem.split("_")[0]
        if any(m.revision == revision for m in found):
            raise Broken(f"two migrations of {service} have the number {revision}")
        found.append(Migration(revision, found[-1].revision if found else None, path))
    return found


def refuse_edited(migrations: Sequence[Migration], ran: Mapping[str, str]) -> None:
    """Raises Broken where a file is not the one that ran; ``ran``: revisions and checksums."""
    for migration in migrations:
        if ran.get(migration.revision, migration.checksum) != migration.checksum:
            raise Broken(
                f"{migration.path.name} was changed after it ran on this database:"
                " put it back, and make the change in a new migration"
            )


def not_run(migrations: Sequence[Migration], ran: Mapping[str, str]) -> list[Migration]:
    """Those that a database still has to run. Raises Broken where another file ran."""
    refuse_edited(migrations, ran)
    return [each for each in migrations if each.revision not in ran]


def refuse_old(service: str, ran: Mapping[str, str]) -> None:
    """Raises Broken where a database has not run all migrations of a service, or others. A newer
    schema is accepted; the changelog names releases for which services must stop first.
    """
    if missing := [each.path.stem for each in not_run(migrations_of(service), ran)]:
        raise Broken(
            f"the database is not Muster's, or is older than this {service}: its schema {service}"
            f" has not run {', '.join(missing)}; check MUSTER_DATABASE_URL, then run"
            " `python -m muster.migrate`"
        )
