"""Durable workflow runs on Celery and Redis: the public names, nothing else. Importing this package imports neither Celery nor Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.codec import register_codec
from conductor.declare.capability import Capability, capability
from conductor.declare.context import Ctx
from conductor.declare.effects import EffectSpec, Verdict
from conductor.declare.lanes import Lane
from conductor.declare.limits import Limit
from conductor.declare.needs import need
from conductor.declare.outcome import FailedStep, RunOutcome
from conductor.declare.results import Results
from conductor.declare.retry import Retry
from conductor.declare.workflow import Workflow
from conductor.errors import (
    AlreadyAdvanced,
    BadInput,
    BadResult,
    CodeNotHere,
    ConductorError,
    Conflict,
    ConsentRequired,
    DeclarationError,
    EffectInDoubt,
    EffectUncertain,
    ForkRefused,
    GetInsideStep,
    GetTimeout,
    KeyConflict,
    LaneBusy,
    LaneFull,
    NoConductor,
    NotAvailableYet,
    NotFailed,
    NotInDoubt,
    NotWaiting,
    OperationFailed,
    PayloadMismatch,
    PermanentError,
    ResultExpired,
    RetryAfter,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunQueued,
    SettingsError,
    StaleAttempt,
    StepTimeout,
    StoreFull,
    StoreUnreachable,
    TooManySignals,
    TransientError,
    UnknownCapability,
    UnknownFormat,
    UnknownKey,
    UnknownOperation,
    UnknownRun,
    UnknownSignal,
    UnknownStep,
    UnknownWorkflow,
    UnsafeServer,
    ValueTooLarge,
    WaitOver,
    WaitTimeout,
)

if TYPE_CHECKING:
    from conductor.broker import Conductor

__version__ = "0.1.0"

__all__ = [
    "AlreadyAdvanced", "BadInput", "BadResult", "Capability", "CodeNotHere", "Conductor", "ConductorError", "Conflict",
    "ConsentRequired", "Ctx", "DeclarationError", "EffectInDoubt", "EffectSpec", "EffectUncertain", "FailedStep", "ForkRefused",
    "GetInsideStep", "GetTimeout", "KeyConflict", "Lane", "LaneBusy", "LaneFull", "Limit", "NoConductor", "NotAvailableYet",
    "NotFailed", "NotInDoubt", "NotWaiting", "OperationFailed", "PayloadMismatch", "PermanentError", "ResultExpired", "Results",
    "Retry", "RetryAfter", "RunCancelled", "RunFailed", "RunFinished", "RunOutcome", "RunQueued", "SettingsError", "StaleAttempt",
    "StepTimeout", "StoreFull", "StoreUnreachable", "TooManySignals", "TransientError", "UnknownCapability", "UnknownFormat",
    "UnknownKey", "UnknownOperation", "UnknownRun", "UnknownSignal", "UnknownStep", "UnknownWorkflow", "UnsafeServer", "ValueTooLarge",
    "Verdict", "WaitOver", "WaitTimeout", "Workflow", "capability", "need", "register_codec",
]


def __getattr__(name: str) -> Any:
    if name == "Conductor":  # the only public name that needs Celery, which declaring and testing do not
        from conductor.broker import Conductor

        return Conductor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
