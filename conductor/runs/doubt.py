"""The one place that is asked before code which may already have taken effect is run again, whoever brings the repeat about: the first
call, a retry, a sweep after a lost worker, a person.

Authority: the flag `d` on the record says that an earlier attempt is in doubt, `o` that its code has run in an earlier life, or up to a
call it waited for; only the holder of a fence looks at it, so no two processes verify and repeat at once. Trust: a verdict is worth as much
as its verifier; what cannot be judged is never taken for success and never blindly repeated. A person's word (`conductor resolve`) is used
once and then struck out, before the code runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from conductor import codec
from conductor.classify import is_in_doubt
from conductor.declare.code import Code
from conductor.declare.effects import Verdict
from conductor.declare.judging import Judged
from conductor.declare.operation import capability_of
from conductor.errors import BadResult, EffectInDoubt, OutcomeUnknown
from conductor.records import Attempt, FailurePolicy, Node, Outcome, OutcomeKind
from conductor.store import Store
from conductor.store.reads import error_name

__all__ = ["ABSENT", "OVER", "RESOLVED", "Doubt", "landed"]

OVER = "over"  # in a kept error: why there was to be no further attempt
RESOLVED = "?"  # under which name a person's word is kept
ABSENT = "absent"
_WARNING = "the call did not report success, but every declared effect was found in place; it was not repeated"

Ask = Callable[[], Judged]


def landed(payload: str) -> str:
    """A person's word that the effect happened and gave this."""
    return f"landed;{payload}"


@dataclass(frozen=True)
class Doubt:
    """Judges for one worker thread. `tell` writes down an error as it is kept of an attempt."""

    store: Store
    tell: Callable[[Attempt, BaseException, str, int], str]
    limit: int

    def before(self, held: Attempt, node: Node, code: Code, ask: Ask) -> Outcome | None:
        """Asked before a repeat. An outcome ends the attempt without running the code; None lets it run."""
        flags = held.flags.partition("w")[0]
        doubtful = "d" in flags
        if not code.guarded or not (doubtful or "o" in flags or held.attempt > 1):
            return None
        if doubtful and (word := self.store.once_of(held, RESOLVED)):
            return self._resolved(held, word)
        over = self._over(held) if doubtful else ""
        judged = ask()
        unknown = judged.verdict is Verdict.INDETERMINATE
        if judged.verdict is Verdict.VERIFIED:
            return self._verified(held, node, code, judged)
        if over and not (unknown and not _may_repeat(code)):
            return Outcome(held, OutcomeKind.FAILED, reason=over, policy=node.policy, doubt=unknown)
        # What its policy does not repeat is repeated only for a person who has retried it, and only if it is known not to have happened.
        retried = "o" in flags and "1" not in flags
        if doubtful and not over and _is_never_repeated(code) and (unknown or not retried):
            lost = OutcomeUnknown(what=held.ref)
            return Outcome(
                held, OutcomeKind.FAILED, reason="outcome_unknown", policy=node.policy, doubt=True,
                error=self.tell(held, lost, "outcome_unknown", 0))
        if unknown and doubtful and not _may_repeat(code):
            return self.unjudged(held, node, judged.reason, 0)
        return None

    def _over(self, held: Attempt) -> str:
        """Why there was to be no attempt after one that nobody could be asked about, so that this one only asks; empty if there was."""
        place = str(held.index) if held.item is None else f"{held.index}:{held.item}"
        name = error_name(place, held.attempt, held.generation)
        kept = self.store.values(self.store.keys.run(held.run_id, "err"), [name])[0]
        return str(json.loads(kept).get(OVER, "")) if kept else ""

    def after(self, held: Attempt, node: Node, code: Code, error: BaseException, ask: Ask, ran_ms: int) -> Outcome | None:
        """Asked when an attempt has ended in doubt. An outcome settles it; None leaves it to the retry policy, flagged."""
        if not code.guarded or not is_in_doubt(error):
            return None
        judged = ask()
        if judged.verdict is Verdict.VERIFIED:
            return self._verified(held, node, code, judged)
        if judged.verdict is Verdict.INDETERMINATE and not _may_repeat(code):
            return self.unjudged(held, node, f"{type(error).__name__}; {judged.reason}", ran_ms)
        return None

    def _verified(self, held: Attempt, node: Node, code: Code, judged: Judged) -> Outcome:
        """All landed. An operation says how it was found; a step gives what its type allows."""
        try:
            payload = code.landed(judged.value, self.limit) if judged.has_value else self._recovered(held, code, judged)
        except BadResult as error:
            return self.unjudged(held, node, f"it happened, but its result is not known: {error}", 0)
        return Outcome(held, OutcomeKind.COMPLETED, payload=payload, total=-1, how="verified")

    def _recovered(self, held: Attempt, code: Code, judged: Judged) -> str:
        told = {"status": "ok", "post_write_recovery": True, "warning": _WARNING, "effects_verified": judged.count}
        if capability_of(held.workflow):
            return codec.encode(told)
        try:
            return code.landed(told, self.limit)
        except BadResult:
            return code.landed(None, self.limit)

    def _resolved(self, held: Attempt, word: str) -> Outcome | None:
        kind, _, payload = word.partition(";")
        if kind == "landed":
            return Outcome(held, OutcomeKind.COMPLETED, payload=payload, total=-1, how="resolved")
        # Struck out before the code runs: if this process dies now, the effect is in doubt again, and the word no longer about it.
        self.store.note(held, "once", "", RESOLVED)
        return None

    def unjudged(self, held: Attempt, node: Node, reason: str, ran_ms: int) -> Outcome:
        """Nobody can tell: a run is paused, an operation fails, until a person says it."""
        operation = bool(capability_of(held.workflow))
        where = held.run_id if operation else f"{held.run_id} {node.name}{'' if held.item is None else f':{held.item}'}"
        error = EffectInDoubt(what=f"operation {held.run_id}" if operation else f"step {node.name}", where=where, reason=reason)
        return Outcome(
            held, OutcomeKind.FAILED, reason="effect_in_doubt", policy=node.policy if operation else FailurePolicy.PAUSE, doubt=True,
            error=self.tell(held, error, "effect_in_doubt", ran_ms), ran_ms=ran_ms)


def _is_never_repeated(code: Code) -> bool:
    return code.capability is not None and code.capability.options.retry == "none" and not code.idempotent


def _may_repeat(code: Code) -> bool:
    return code.idempotent or (code.capability is not None and code.capability.options.retry == "replay")

