"""Every error that labkit raises on purpose.

Each one says what is wrong and, in ``cure``, what to do about it. The command line prints both on
one line and exits with status 1; nothing here ever reaches a user as a bare traceback.
"""

from __future__ import annotations


class LabkitError(Exception):
    """Base of all typed errors: a message and the cure for it."""

    def __init__(self, message: str, *, cure: str) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.message} {self.cure}".strip()


class ConfigError(LabkitError, ValueError):
    """A parameter of the engine, of sampling or of a command has a wrong type or value."""


class ModelNotFoundError(LabkitError, FileNotFoundError):
    """The name given as a model leads to no checkpoint."""


class AssetError(LabkitError):
    """A bundled or downloadable asset is missing or fails its checksum."""


class CheckpointError(LabkitError, ValueError):
    """A checkpoint's files are missing, truncated, contradictory or hold values we cannot use."""


class UnsupportedModelError(LabkitError, ValueError):
    """The checkpoint is sound but of an architecture or format that labkit does not run."""


class TokenizerError(LabkitError, ValueError):
    """The checkpoint has no usable tokenizer."""


class TemplateError(LabkitError, ValueError):
    """A chat template is missing, broken, or refuses the messages."""


class RequestError(LabkitError, ValueError):
    """A request that can never be served; the other requests go on."""


class PromptTooLongError(RequestError):
    """Prompt and requested output do not fit the sequence limit or the KV pool."""


class EmptyPromptError(RequestError):
    """A prompt without a single token."""


class ExecutorError(LabkitError, RuntimeError):
    """The requested executor cannot run on this machine."""


class StepFailedError(LabkitError, RuntimeError):
    """The model failed while it computed a request; the engine goes on with the others."""


class EngineClosedError(LabkitError, RuntimeError):
    """The engine was closed before the call."""


class MissingExtraError(LabkitError, ImportError):
    """An optional dependency is not installed."""


class KernelBuildError(LabkitError, RuntimeError):
    """A CUDA source does not compile, or no compiler is here for it.

    op, rung: of the kernel, "" for a source of the user's; options: given to the compiler; log: what it said.
    """

    def __init__(
        self, message: str, *, cure: str, op: str = "", rung: str = "", options: tuple[str, ...] = (), log: str = ""
    ) -> None:
        super().__init__(message, cure=cure)
        self.op = op
        self.rung = rung
        self.options = options
        self.log = log

    @property
    def place(self) -> str:
        """The first error of the log with the two lines below it: the source, and a caret. "" without a log."""
        lines = self.log.splitlines()
        first = next((number for number, line in enumerate(lines) if "error" in line), 0)
        return "\n".join(lines[first : first + 3])


class KernelLaunchError(LabkitError, RuntimeError):
    """A kernel cannot be launched, or failed while it ran."""


class KernelArgumentError(KernelLaunchError, ValueError):
    """A tensor or scalar given to an operation has a wrong shape, dtype, device or layout; nothing was launched."""


class PtxError(LabkitError, ValueError):
    """PTX that the simulator cannot read or does not know; names the line and the instruction."""
