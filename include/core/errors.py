"""The errors a person gets to read: what happened, on what, and what to do.

Each is raised once, where the facts are known. The Airflow tasks and the CLI print `str(error)` as it is.
"""

from __future__ import annotations


class PipelineError(Exception):
    """One or two plain sentences. `retryable` says whether trying again, unchanged, can help."""

    retryable = False

    def __init__(self, what: str, *, do: str = "", retryable: bool | None = None) -> None:
        super().__init__(f"{what} {do}".strip())
        if retryable is not None:
            self.retryable = retryable


class SpecError(PipelineError):
    """A dataset or target YAML, a run parameter or a connection says something that can't be followed."""


class SourceError(PipelineError):
    """The dataset's own file is missing or a line of it can't be read."""


class TargetError(PipelineError):
    """The target's tokenizer or template is missing, or isn't what the profile says."""


class EngineError(PipelineError):
    """The inference engine is missing, serves something else, or refuses."""


class LedgerError(PipelineError):
    """The ledger is held by another process, or holds what it can't hold."""


class StorageError(PipelineError):
    """The data folder can't be written or a file in it isn't what it should be."""


class AuditFailure(PipelineError):
    """The shard holds malformed samples; the message names rules and samples."""


class RemoteError(PipelineError):
    """The GPU host refuses, can't be reached, or holds something else than was sent."""


class JobError(PipelineError):
    """A job on the GPU host (training, evaluation) ended badly."""
