"""Durable workflow runs on Celery and Redis: the public names, nothing else. Importing this package imports neither Celery nor Redis, and
each name comes from its module when it is first asked for: a caller over HTTP needs few of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conductor.broker import Conductor
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


_HOMES = {
    "Capability": "declare.capability", "Conductor": "broker", "Ctx": "declare.context", "EffectSpec": "declare.effects",
    "FailedStep": "declare.outcome", "Lane": "declare.lanes", "Limit": "declare.limits", "Results": "declare.results",
    "Retry": "declare.retry", "RunOutcome": "declare.outcome", "Verdict": "declare.effects", "Workflow": "declare.workflow",
    "capability": "declare.capability", "need": "declare.needs", "register_codec": "codec",
}  # all others are errors


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    return found
