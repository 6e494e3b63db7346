"""Alembic's way in. The connection, its transaction and the lock around it are given by `schema.py`."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], version_table=context.config.attributes["version_table"])
context.run_migrations()
