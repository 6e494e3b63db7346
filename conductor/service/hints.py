"""What to do about an error, by its code: said in the words of HTTP, for whoever has nothing but the answer.

A hint names a request that helps, or says that none does. What only code inside a step or a process of ours can meet has no line of its
own; should it come out all the same, the hint says whom to ask.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["hint_for"]

_RUN = "GET /v1/runs/{id} shows how it stands"
_LARGE = "Keep large values outside and send a reference to them."
_OPERATOR = "No other request would help; whoever runs the service finds what is wrong with `conductor doctor`."
_REPEAT = "Nothing is lost; repeat the request."

_HINTS: Mapping[str, str] = {
    # What was sent.
    "bad_input": "Correct the field that is named and send the request again; nothing was written.",
    "declaration_error": "Correct what is named and send the request again; nothing was written.",
    "value_too_large": _LARGE,
    "unknown_signal": "Send one of the names that are listed; GET /v1/workflows/{name} shows where a run waits.",
    "unknown_step": "Name one of the steps that are listed.",
    # What has moved on.
    "key_conflict": "Use another key for other work; what has the key is named in details, if you may see it.",
    "conflict": "Look at it again, then repeat.",
    "call_changed": "Fork the run where its steps call with other values than before, or correct the code and retry it.",
    "not_failed": "Only what has failed can be retried; GET /v1/runs/{id}, or GET /v1/operations/{id} for an operation, shows its state.",
    "run_finished": "The run has ended; GET /v1/runs/{id}/outcome tells how.",
    "run_queued": "Wait until its lane admits it (GET /v1/lanes/{name}), or cancel it.",
    "was_undone": "POST /v1/runs/{id}/fork starts a new run from a step of it.",
    "fork_refused": "Fork from the step that the message names, or start a new run.",
    "wait_over": f"It takes this signal no more; {_RUN}.",
    "already_advanced": f"The first answer counts and cannot be changed; {_RUN}.",
    "not_waiting": f"Nothing waits for an answer there now; {_RUN}, and which steps wait.",
    "too_many_signals": "Send it again when the run has gone on; signals that nothing waits for yet are kept up to a number.",
    "superseded": f"It was retried or cancelled meanwhile; {_RUN}.",
    "not_in_doubt": "Only an effect that nobody can tell of is settled by a person; GET /v1/operations/{id} shows the state.",
    "effect_in_doubt": "Look whether it happened, then say so: POST /v1/operations/{id}/resolve.",
    "operation_failed": "GET /v1/operations/{id} tells why; POST /v1/operations/{id}/retry tries again.",
    "operation_pending": "It is repeated by itself; GET /v1/operations/{id} tells how it ended.",
    "result_expired": "Raise the retention to keep finished runs longer.",
    # What is not there, or not allowed.
    "consent_required": "POST /v1/sessions/{session}/grants grants it.",
    "code_not_here": "This service does not import that workflow: send it as a task (conductor.signal_run, conductor.advance_run), or "
    "have the service import it.",
    "no_archive": "This service has no archive, so only what the store keeps can be asked for; leave `archived` out.",
    "not_healthy": "Nothing was replayed; repair what it needs, then repeat, or leave health_check out.",
    # What is too much, or away.
    "lane_full": "Nothing was started; try again later.",
    "store_full": "Nothing was written; try again when runs have finished.",
    "retry_after": "Wait as long as the header Retry-After says, then repeat.",
    "store_unreachable": _REPEAT, "archive_unreachable": _REPEAT, "blob_unreachable": _REPEAT,
    "unsafe_server": "Whoever runs the store has to change what is named; `conductor doctor` checks it again.",
    "archive_refused": _OPERATOR, "archive_too_new": "Upgrade celery-conductor where the service runs.",
    "archive_not_installed": "Install the package that is named where the service runs.",
    # What a run has met, told as its own error.
    "payload_mismatch": "Bring back a model that reads the value, then POST /v1/runs/{id}/resume.",
    "archived_run_corrupt": "Bring its row back from a backup, or erase it: POST /v1/purge.",
    "blob_missing": "The value is gone with its blob; look whether the service has the blob store that the workers have.",
    "no_blob_store": "Give the service the blob store that the workers have (conductor_blobs).",
    "unknown_format": "Upgrade celery-conductor where the service runs, or register the codec that wrote the value there.",
    "corrupt_payload": "The stored value is damaged; bring it back from a backup.",
    "archive_format_unknown": "Upgrade celery-conductor where the service runs.",
}
_UNKNOWN = "Ids come from the service's own answers; GET lists what is there. What belongs to another session is unknown too."
_BY_STATUS: Mapping[int, str] = {404: _UNKNOWN, 409: "Look at it again, then repeat."}


def hint_for(code: str, status: int) -> str:
    """Never empty."""
    return _HINTS.get(code) or _BY_STATUS.get(status, _OPERATOR)
