"""Messages for our tasks that nobody honest sends: refused with one clear line before anything is done.

Our queues hold JSON only. A message of another content type is refused in the worker's parent, before its body is decoded: decoding a
pickle is already running it, and a project may well accept pickles for tasks of its own. A body or a header of another shape than Celery's
is refused there too: Celery unpacks them without a look, and the error would end the whole worker.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery
from celery.worker.strategy import default as celery_strategy
from pydantic import TypeAdapter, ValidationError

from conductor.errors import BadInput

__all__ = ["checked_arguments", "checked_poke", "json_only"]

_JSON = "application/json"
_LONGEST_NAME = 255

logger = logging.getLogger(__name__)

Handler = Callable[..., Any]


def json_only(task: Any, app: Celery, consumer: Any, **options: Any) -> Handler:
    """Celery's own strategy for our tasks, behind a look at the content type and the shape of the envelope."""
    inner: Handler = celery_strategy(task, app, consumer, **options)

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **more: Any) -> Any:
        if problem := _problem_of(message):
            logger.warning("refused a message for %s: %s", task.name, problem)
            return message.reject_log_error(logger, consumer.connection_errors)
        return inner(message, body, ack, reject, callbacks, **more)

    return handle


def _problem_of(message: Any) -> str:
    """What is wrong with an envelope; empty if nothing is."""
    if message.content_type != _JSON:
        return f"its content type is {_shown(message.content_type)}, only {_JSON} is taken"
    try:
        body = message.payload
    except Exception as error:  # whatever a decoder finds to say about a stranger's bytes
        return f"its body is not JSON ({type(error).__name__})"
    if not (isinstance(body, list) and len(body) == 3 and isinstance(body[0], list) and isinstance(body[1], dict)):
        return "its body is not a list of arguments, keywords and options"
    headers = message.headers or {}
    if not isinstance(headers.get("id"), str):
        return f"its id is {_shown(headers.get('id'))}, not a string"
    limits = headers.get("timelimit") or [None, None]
    if not (isinstance(limits, list) and len(limits) == 2 and all(limit is None or type(limit) in (int, float) for limit in limits)):
        return f"its timelimit is {_shown(limits)}, not two numbers"
    return ""


def checked_poke(args: tuple[Any, ...], kwargs: Mapping[str, Any], namespace: str, partitions: int) -> tuple[int, str]:
    """The partition and queue a poke names; BadInput if it is not a poke of this namespace."""
    if kwargs or len(args) != 3:
        raise _bad("conductor.execute", "arguments", "expected namespace, partition and queue")
    theirs, partition, queue = args
    if theirs != namespace:
        raise _bad("conductor.execute", "namespace", f"{_shown(theirs)} is not {namespace!r}; two apps share a queue, give each its own")
    if type(partition) is not int or not 0 <= partition < partitions:
        raise _bad("conductor.execute", "partition", f"{_shown(partition)} is not a number from 0 to {partitions - 1}")
    if not isinstance(queue, str) or not queue or len(queue) > _LONGEST_NAME or not queue.isprintable():
        raise _bad("conductor.execute", "queue", f"{_shown(queue)} is not the name of a queue")
    return partition, queue


def checked_arguments(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """Bind a command's arguments and check the simple types its signature names; BadInput tells which one is wrong."""
    signature = inspect.signature(function, eval_str=True)
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise _bad(name, "arguments", str(error)) from None
    for parameter, value in list(bound.arguments.items())[1:]:
        wanted = signature.parameters[parameter]
        if wanted.kind is not wanted.VAR_KEYWORD and not _fits(value, wanted.annotation):
            raise _bad(name, parameter, f"{_shown(value)} is not of type {inspect.formatannotation(wanted.annotation)}")
    return bound


@functools.cache
def _adapter(wanted: Any) -> TypeAdapter[Any]:
    return TypeAdapter(wanted)


def _fits(value: Any, wanted: Any) -> bool:
    """Strictly: "12" is not 12, and 1 is not true. What JSON says, not what Python would make of it."""
    if wanted is Any:
        return True
    if type(value) is float and not math.isfinite(value):
        return False
    try:
        _adapter(wanted).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _bad(name: str, field: str, problem: str) -> BadInput:
    return BadInput(what=f"message for {name}", field=field, problem=problem)


def _shown(value: Any) -> str:
    """A stranger's value, short enough for a log line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
