"""Work for an agent outside: the run says what it wants, waits, and goes on with the answer. The first answer wins.

    conductor start article '{"topic": "durable runs"}'
    conductor show last --json
    conductor advance last draft '{"title": "On runs", "text": "…"}'
    conductor advance last review '{"ok": true}'

`show --json` names under `active_waiters` what is wanted and by which instructions. If no agent comes for two days the run is cancelled.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, Field

from conductor import Workflow

__all__ = ["Draft", "Review", "Topic", "flow"]


class Topic(BaseModel):
    """What a run is started with."""

    topic: str = Field(min_length=1)


class Draft(BaseModel):
    """What the writing agent answers."""

    title: str
    text: str


class Review(BaseModel):
    """What the reviewing agent answers."""

    ok: bool
    remarks: str = ""


flow = Workflow("article", input=Topic, idle_timeout=timedelta(days=2))


@flow.step
def brief(topic: Topic) -> str:
    return f"one page about {topic.topic}"


draft = flow.agent("draft", Draft, instructions="Write the page that the step `brief` asks for.", after=brief)
review = flow.agent("review", Review, instructions="Is the draft fit to print? Say what is missing.", after=draft)


@flow.step
def article(draft: Draft, review: Review) -> str:
    return f"{draft.title}\n\n{draft.text}" if review.ok else f"not printed: {review.remarks}"
