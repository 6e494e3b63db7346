"""The HTTP service: parse, one use case, render. Nothing here decides anything; without the service only HTTP stops.

Authority: the store, as for everybody else. The service holds no state that another replica would miss: tokens and logins stand in the
store, a copy of them is at most a second old, and what counts failed attempts is a bound on one process, not a truth.
Trust: a request is read whole, within limits, before any of it is believed (`limits.py`); who calls is settled next (`access.py`); whose
run it is comes last (`ownership.py`), and what belongs to another session is answered exactly like what does not exist.
Threads: endpoints are plain functions in the thread pool, because the core is synchronous; only what waits for long (events) is async.
Failure: a store that is away is 503 and nothing is lost; a request whose answer is lost may be repeated under the same ids.
"""

from __future__ import annotations

from conductor.service.app import asgi

__all__ = ["asgi"]
