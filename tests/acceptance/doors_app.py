"""A user's project of the tests that go by both doors: a workflow for every state, and capabilities that end in every way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from pydantic import BaseModel

from conductor import Conductor, Lane, Limit, Workflow, capability
from conductor.errors import EffectUncertain, TransientError

app = Celery("doors", broker=os.environ["TEST_BROKER_URL"])
conductor = Conductor(app)
MENDED = Path(os.environ["TEST_MENDED"])


class Person(BaseModel):
    name: str
    age: int | None = None


class Word(BaseModel):
    text: str


greet = Workflow("greet", input=Person)


@greet.step
def hello(person: Person) -> str:
    return f"Hello {person.name}"


@greet.step
def shout(hello: str, person: Person) -> dict[str, Any]:
    return {"said": hello.upper(), "age": person.age}


broken = Workflow("broken", input=Person)


@broken.step
def stand(person: Person) -> str:
    return person.name


@broken.step
def fall(stand: str) -> str:
    if not MENDED.exists():
        raise ValueError(f"no way for {stand} [red]")
    return stand


asking = Workflow("asking")


@asking.step
def begin() -> int:
    return 1


word = asking.wait("word", Word, after=[begin])
draft = asking.agent("draft", Word, after=[word])


@asking.step(after=[draft])
def finish(draft: Word) -> str:
    return draft.text


desk = Workflow("desk", lane=Lane("desk", 1, 2))
desk.wait("ring", Word)

asks = Workflow("asks")


@asks.step(limit=Limit("ai", "1/h"))
def ask() -> int:
    return 1


doubtful = Workflow("doubtful")


@doubtful.effect
def pay() -> int:
    raise EffectUncertain("the connection broke")


@doubtful.step
def close(pay: int) -> int:
    return pay + 1


many = Workflow("many", input=Person)


@many.step
def three(person: Person) -> list[int]:
    return [0, 1, 2]


@many.each(three)
def one(number: int) -> int:
    if number == 1:
        raise ValueError("not this one")
    return number


@capability("invoice")
def invoice(number: int, note: str = "") -> str:
    """Write an invoice."""
    return f"invoice {number}{note}"


@capability("sulk", retry="replay", idempotent=True)
def sulk() -> str:
    """Fail for now."""
    raise TransientError("not now")


@capability("erase", consent=True)
def erase() -> str:
    """Erase everything."""
    return "erased"
