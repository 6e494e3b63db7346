"""The schema, step by step. Run by the archive itself when it is opened; see `conductor/archive/schema.py`.

A revision is a growing number (`0001`). It may only add, so that the release before can go on beside it; one that cannot keep that promise
raises the fact `oldest_schema`, and releases with an older schema then refuse the archive instead of guessing.
"""
