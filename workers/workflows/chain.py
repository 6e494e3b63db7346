"""The smallest useful workflow: three steps, each using the result of the one before. A parameter named like a step is the dependency."""

from __future__ import annotations

from pydantic import BaseModel

from conductor import Workflow

__all__ = ["Letter", "flow"]


class Letter(BaseModel):
    """What a run is started with: `flow.delay(Letter(to="Ada", text="it works"))`."""

    to: str
    text: str


flow = Workflow("chain", input=Letter)


@flow.step
def greet(letter: Letter) -> str:
    """Open the letter."""
    return f"Dear {letter.to},"


@flow.step
def write(letter: Letter, greet: str) -> list[str]:
    """Write what was asked for under the greeting."""
    return [greet, letter.text]


@flow.step
def sign(write: list[str]) -> str:
    """Close it. The only step that nothing follows: its result is the run's."""
    return "\n".join([*write, "Yours, Conductor"])
