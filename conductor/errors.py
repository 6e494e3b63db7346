"""One tree of exceptions. The docstring of a class is its message, so that reading this file is reading everything Conductor can say.

An error is built from keywords (`UnknownRun(run_id=..., namespace=...)`), which fill the template and stay readable as attributes. `code`
is the stable word that HTTP, CLI and logs show; `error_kind` tells a retry policy whether a repeat can help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

__all__ = [
    "AlreadyAdvanced", "ArchiveFormatUnknown", "ArchiveNotInstalled", "ArchiveRefused", "ArchiveTooNew", "ArchiveUnreachable",
    "ArchivedRunCorrupt", "BadInput", "BadResult", "BlobMissing", "BlobRefused", "BlobUnreachable", "CallChanged", "CodeNotHere",
    "ConductorError", "Conflict", "ConsentRequired", "CorruptPayload", "DeclarationError", "EffectInDoubt", "EffectUncertain", "ErrorKind",
    "ForkRefused",
    "GetInsideStep", "GetTimeout", "KeyConflict", "LaneBusy", "LaneFull", "NoArchive", "NoBlobStore", "NoConductor", "NotAvailableYet",
    "NotFailed",
    "NotHealthy", "NotInDoubt", "NotWaiting", "OperationFailed", "OperationPending", "OutcomeUnknown", "PartialEffects",
    "PayloadMismatch", "PermanentError", "ResultExpired", "RetryAfter", "RunCancelled", "RunFailed", "RunFinished", "RunQueued",
    "ServerNotInstalled", "SettingsError", "SoftFailure", "StaleAttempt", "StepTimeout", "StoreFull", "StoreUnreachable",
    "TooManySignals", "TransientError",
    "UnknownCapability", "UnknownFormat", "UnknownKey", "UnknownLane", "UnknownLimit", "UnknownMessage", "UnknownOperation",
    "UnknownRun", "UnknownSchedule", "UnknownSession", "UnknownSignal", "UnknownStep", "UnknownToken", "UnknownWorkflow",
    "UnsafeServer", "ValueTooLarge", "WaitOver", "WaitTimeout", "WhenFailed", "redact",
]

ErrorKind = Literal["transient", "permanent", "unknown"]

_CREDENTIALS = re.compile(r"(://)[^/\s@]*@")
_SECRETS = re.compile(
    r"""(?i)\b((?:[\w-]*(?:password|passwd|secret|token|api[_-]?key|apikey|access[_-]?key|private[_-]?key))|authorization)\b"""
    r"""(["']?\s*[=:]\s*["']?)(?:(?:bearer|basic)\s+)?[^\s"',;&)}]+"""
)
_TOKEN = re.compile(r"\bcdr_[A-Za-z0-9_-]{8,}")  # of our own service
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def redact(text: str) -> str:
    """Take user names and passwords out of every URL in `text`, our own tokens, and what stands behind words such as `password=`."""
    return _SECRETS.sub(r"\1\2***", _CREDENTIALS.sub(r"\1***@", _TOKEN.sub("cdr_***", text)))


class _Blanks(dict[str, Any]):
    """Fills a template even if a detail is missing: a half-empty message is better than a KeyError in its place."""

    def __missing__(self, name: str) -> str:
        return "?"


class ConductorError(Exception):
    """Conductor could not do what was asked"""

    code: ClassVar[str] = "conductor_error"
    error_kind: ErrorKind = "permanent"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.code = _WORD.sub("_", cls.__name__).lower()

    def __init__(self, message: str = "", **details: Any) -> None:
        # The message is made in __str__, so that an unpickled copy (args first, details after) reads the same.
        super().__init__(*((message,) if message else ()))
        self.__dict__.update(details)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no detail {name!r} (has: {', '.join(self.__dict__) or 'none'})")

    @property
    def details(self) -> Mapping[str, Any]:
        """The keywords this error was built from."""
        return dict(self.__dict__)

    def __str__(self) -> str:
        if self.args:
            return redact(str(self.args[0]))
        template = " ".join((type(self).__doc__ or self.code).split())
        return redact(template.format_map(_Blanks(self.__dict__)))


# What users raise inside a step.


class TransientError(ConductorError):
    """the step met a problem that a repeat may solve"""

    error_kind: ErrorKind = "transient"


class PermanentError(ConductorError):
    """the step met a problem that no repeat will solve"""


class EffectUncertain(ConductorError):
    """the effect {key} may or may not have happened; it is verified before anything is repeated"""

    error_kind: ErrorKind = "unknown"


# Declaring.


class DeclarationError(ConductorError):
    """{where}: {problem}"""


class NotAvailableYet(ConductorError):
    """{where}: {what} is not available in this release"""


class UnknownWorkflow(ConductorError):
    """unknown workflow {workflow!r}: declared here are {known}; import its module, or name it in autodiscover_workflows()"""


class NoConductor(ConductorError):
    """workflow {workflow} cannot be started: this process has no Conductor; create one with Conductor(app), or import the
    module that does"""


class UnknownCapability(ConductorError):
    """unknown capability {capability!r}: registered here are {known}; import its module"""


# Starting and values.


class BadInput(ConductorError):
    """{what} refused: {field}: {problem}"""


class BadResult(ConductorError):
    """step {step} of workflow {workflow} returned something that is not {expected}: {field}: {problem}"""


class ValueTooLarge(ConductorError):
    """{what} has {size} {unit}, the limit is {limit}; keep large values outside and pass a reference to them"""

    def __init__(self, message: str = "", *, unit: str = "bytes", **details: Any) -> None:
        super().__init__(message, unit=unit, **details)


class UnknownFormat(ConductorError):
    """a stored value has format {prefix!r}, this process reads {known}; upgrade celery-conductor, or register the codec that wrote it"""


class CorruptPayload(UnknownFormat):
    """a stored value of format {prefix!r} cannot be read: {problem}"""


class PayloadMismatch(ConductorError):
    """the stored value for {parameter!r} of step {step} (workflow {workflow}) no longer fits {expected}: {field}: {problem}; bring back a
    model that reads it, then resume the run"""


class WhenFailed(ConductorError):
    """the condition of step {step} (workflow {workflow}) raised {error}"""


class KeyConflict(ConductorError):
    """key {key!r} of workflow {workflow} already belongs to run {run_id}, which has another input or session; use another key for
    other work"""


class LaneFull(ConductorError):
    """lane {lane} is full: {active} runs are under way and {queued} are queued; nothing was started, try again later or raise the lane's
    max_queued"""

    error_kind: ErrorKind = "transient"


class RetryAfter(ConductorError):
    """the service asks to be left alone for {seconds} s"""

    error_kind: ErrorKind = "transient"

    def __init__(self, seconds: float = 0, message: str = "", **details: Any) -> None:
        super().__init__(message, **({"seconds": seconds, "retry_after": seconds} | details))


class StoreFull(ConductorError):
    """the store has used {used} of its memory, so new runs are refused while running ones finish; free memory or raise maxmemory"""

    error_kind: ErrorKind = "transient"


class StoreUnreachable(ConductorError):
    """the store at {url} cannot be reached: {problem}; nothing is lost, the call may be repeated"""

    error_kind: ErrorKind = "transient"


class UnsafeServer(ConductorError):
    """the store at {url} is not safe for runs: {problem}; {remedy}"""


class SettingsError(ConductorError):
    """setting {setting} is wrong: {problem}"""


# Large values.


class NoBlobStore(ConductorError):
    """a stored value is kept in a blob store, as {name}, and this process has none; set conductor_blobs to the store that all processes
    share"""


class BlobMissing(ConductorError):
    """blob {name} is not in the blob store {store}; it may have been deleted with its run, or this process looks into another store than
    the one that wrote it (conductor_blobs)"""


class BlobRefused(ConductorError):
    """the blob store {store} cannot be used: {problem}; {remedy}"""


class BlobUnreachable(ConductorError):
    """the blob store {store} failed with blob {name}: {problem}; the call may be repeated"""

    error_kind: ErrorKind = "transient"


# The archive.


class NoArchive(ConductorError):
    """there is no archive; set conductor_archive_url (sqlite:////path/archive.db on one host, postgresql://user@host/database for any
    number)"""


class ArchiveNotInstalled(ConductorError):
    """the archive needs {package}, which is not installed here; install it with: pip install 'celery-conductor[{extra}]'"""


class ServerNotInstalled(ConductorError):
    """the HTTP service needs {package}, which is not installed here; install it with: pip install 'celery-conductor[server]'"""


class UnknownToken(ConductorError):
    """unknown token {name!r}; `conductor tokens` lists them"""


class ArchiveUnreachable(ConductorError):
    """the archive at {url} cannot be reached: {problem}; {remedy}; nothing is lost, the call may be repeated"""

    error_kind: ErrorKind = "transient"


class ArchiveRefused(ConductorError):
    """the archive at {url} cannot be used: {problem}; {remedy}"""


class ArchiveTooNew(ConductorError):
    """the archive at {url} has schema {found}, which this release (schema {known}) cannot work with; upgrade celery-conductor on
    this host"""


class ArchiveFormatUnknown(UnknownFormat):
    """archived run {run_id} has format {format}, this process reads {known}; upgrade celery-conductor"""


class ArchivedRunCorrupt(CorruptPayload):
    """archived run {run_id} cannot be read: {problem}; bring its row back from a backup, or erase it with
    `conductor purge --run {run_id}`"""


# Runs.


class UnknownRun(ConductorError):
    """unknown run {run_id}: no such run in namespace {namespace}; it may have been purged"""


class UnknownLimit(ConductorError):
    """unknown limit {limit!r}: it is not in use, and no code here declares it (declared here: {known})"""


class UnknownLane(ConductorError):
    """unknown lane {lane!r}: no run is in it, and no workflow here declares it (declared here: {known})"""


class UnknownKey(UnknownRun):
    """workflow {workflow} has no run with key {key!r} in namespace {namespace}; a key lives as long as its run and some days after"""


class UnknownSignal(ConductorError):
    """run {run_id} of workflow {workflow} waits nowhere for signal {signal!r}; it knows {known}{close}"""


class WaitOver(ConductorError):
    """signal {signal!r} came too late for run {run_id}: its wait ({steps}) is over"""


class TooManySignals(ConductorError):
    """run {run_id} already keeps {limit} signals that nothing waits for yet, so {signal!r} was not taken; send it
    again when it has gone on"""

    error_kind: ErrorKind = "transient"


class AlreadyAdvanced(ConductorError):
    """step {step} of run {run_id} was already answered, with another result; the first answer counts"""


class NotWaiting(ConductorError):
    """step {step} of run {run_id} does not wait for an answer: it is {state} and the run is {run_state}"""


class CodeNotHere(ConductorError):
    """{what} cannot be checked here: this process does not have the code of step {step} of workflow {workflow}; import the workflow, or
    send it to a worker that has it (task conductor.signal_run or conductor.advance_run)"""


class UnknownStep(ConductorError):
    """run {run_id} of workflow {workflow} has no step {step!r}; it has {known}"""


class RunFailed(ConductorError):
    """run {run_id} of workflow {workflow} failed: {reason}; failed steps: {steps}"""


class LaneBusy(RunFailed):
    """run {run_id} of workflow {workflow} was not admitted by lane {lane} in time; nothing of it ran while it waited. `conductor retry
    {run_id}` queues it again, `conductor lanes` shows who holds the places"""


class RunQueued(ConductorError):
    """run {run_id} is queued in lane {lane}: nothing of it runs that could be paused; wait until it is admitted, or cancel it"""


class RunCancelled(ConductorError):
    """run {run_id} of workflow {workflow} was cancelled: {reason}"""


class RunFinished(ConductorError):
    """run {run_id} has already ended: {state}"""


class NotFailed(ConductorError):
    """run {run_id} is {state}; only a failed run can be retried"""


class ChildEnded(PermanentError):
    """step {step} called workflow {workflow}, and that run was {state} ({reason}). Why: conductor why {run_id}"""


class ChildGone(PermanentError):
    """step {step} waited for run {run_id}, which is no longer in the store: it was purged before its result was taken"""


class CallTooDeep(PermanentError):
    """step {step} of run {run_id} calls workflow {workflow} more than 8 runs deep. Does a workflow call itself without an end?"""


class WasUndone(ConductorError):
    """run {run_id} was undone: what it had completed is no longer there. Start a new run: conductor fork {run_id} --from STEP"""


class ForkRefused(ConductorError):
    """run {run_id} cannot be forked from step {step!r}: {problem}"""


class Conflict(ConductorError):
    """run {run_id} changed while it was being changed: {problem}; look at it again, then repeat"""

    error_kind: ErrorKind = "transient"


class Superseded(ConductorError):
    """run {run_id} lives in generation {found} by now, not in {generation} any more; nothing was done to it"""


class ResultExpired(ConductorError):
    """the result of run {run_id} is gone: finished runs are kept for {retention}; raise the retention to keep them longer"""


class GetTimeout(ConductorError, TimeoutError):
    """run {run_id} has not ended after {seconds} s (it is {state}); the run goes on, only the waiting ended"""

    error_kind: ErrorKind = "transient"


class GetInsideStep(ConductorError):
    """waiting for run {run_id} inside a step of run {inside} would hold a worker for it; make it a step of the workflow instead"""


# Operations.


class UnknownOperation(ConductorError):
    """unknown operation {operation_id}: no such operation in namespace {namespace}; it may have been purged"""


class OperationFailed(ConductorError):
    """operation {operation_id} of capability {capability} ended {state}: {error}"""


class OperationPending(ConductorError):
    """operation {operation_id} of capability {capability} has not ended yet; the step goes on when it has"""

    error_kind: ErrorKind = "transient"


class CallChanged(ConductorError):
    """step {step} asks as its call {number} for {capability} with other values than an earlier attempt did (operation {operation_id}), and
    that was done or may have been; a repeated attempt must ask the same: record with ctx.once what the call depends on, or fork the run"""


class NotInDoubt(ConductorError):
    """{what} is not in doubt: it is {state}; only an effect in doubt can be resolved"""


class NotHealthy(ConductorError):
    """operation {operation_id} was not replayed, and no attempt was used: what it needs is not there: {problem}"""

    error_kind: ErrorKind = "transient"


class UnknownMessage(ConductorError):
    """the inbox of session {session} never had a message {message_id!r}; `conductor inbox {session}` lists what is there"""


class UnknownSession(ConductorError):
    """unknown session {session}: whoever asks is not bound to it"""


class UnknownSchedule(ConductorError):
    """unknown schedule {name!r}: the store has {known}"""


class PartialEffects(ConductorError):
    """{step} returned, but its effects {effects} are not verified; it is repeated to heal them"""

    error_kind: ErrorKind = "transient"


class SoftFailure(ConductorError):
    """{step} returned a failure that may pass: {problem}"""

    error_kind: ErrorKind = "transient"


class OutcomeUnknown(ConductorError):
    """the worker of {what} was lost in the middle, and its capability may not be repeated (retry='none'); look whether it took effect"""


class EffectInDoubt(ConductorError):
    """nobody can tell whether the effect of {what} happened ({reason}); look, then say it: conductor resolve {where} --landed VALUE, or
    --absent"""


# Sessions.


class ConsentRequired(ConductorError):
    """capability {capability} needs the consent of session {session}: grant it with `conductor grant {session} {capability}` (once, for a
    time, or always)"""


# Attempts.


class WaitTimeout(ConductorError, TimeoutError):
    """step {step} of run {run_id} waited {seconds} s for signal {signal!r}, which did not come"""


class StepTimeout(ConductorError, TimeoutError):
    """step {step} of run {run_id} ran longer than its timeout of {seconds} s"""

    error_kind: ErrorKind = "transient"


class StaleAttempt(ConductorError):
    """this attempt of step {step} of run {run_id} is no longer the current one; its result is dropped"""
