"""What a server's error means for the caller: repeat it, or have a person mend it; and what to do.

By SQLSTATE where the server gives one. SQLite gives none, and PostgreSQL none while it refuses a connection: there the words decide.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from conductor.errors import ArchiveRefused, ArchiveUnreachable, ConductorError

__all__ = ["translated"]

_MENDED_BY_PEOPLE: Final = {  # words of the message: what to do
    "unable to open database file": "let this user write the file and its directory",
    "readonly database": "let this user write the file and its directory",
    "file is not a database": "the file belongs to something else, or is damaged: name another one, or bring back a backup",
    "database disk image is malformed": "bring back a backup of the file",
    "password authentication failed": "correct the user or the password in the URL",
    "no password supplied": "put the password into the URL, or into PGPASSWORD or a pgpass file",
    "no pg_hba.conf entry": "allow this user and host in pg_hba.conf",
    "does not exist": "create the role and the database, or correct the URL",
    "permission denied": "grant this user the right to create and change tables in this database",
}
_REPEATED: Final = ("08", "40", "53", "55", "57", "58")  # connection, rollback, resources, lock, operator, system


def translated(error: DBAPIError, url: str, dialect: str, busy_seconds: int) -> ConductorError:
    """Our error for one of the driver's. Only the driver's own words are shown: statements and values stay out."""
    problem = " ".join(str(error.orig).split()) or type(error.orig).__name__
    words = problem.lower()
    state = getattr(error.orig, "sqlstate", None)
    if state is None or state.startswith(("28", "3D", "42501")):
        for sign, remedy in _MENDED_BY_PEOPLE.items():
            if sign in words:
                return ArchiveRefused(url=url, problem=problem, remedy=remedy)
    if dialect == "sqlite" and "locked" in words:
        problem = f"another process has held it for more than {busy_seconds} s"
        return ArchiveUnreachable(url=url, problem=problem, remedy="look for a process that hangs, or move to PostgreSQL")
    if error.connection_invalidated or (state[:2] in _REPEATED if state else isinstance(error, (OperationalError, InterfaceError))):
        return ArchiveUnreachable(url=url, problem=problem, remedy=_see_to_it(dialect))
    return ArchiveRefused(url=url, problem=f"{type(error.orig).__name__}: {problem}", remedy="please report this")


def _see_to_it(dialect: str) -> str:
    if dialect == "sqlite":
        return "see that its disk has room and answers"
    return "see that the server runs and can be reached from here, and that it takes more connections"
