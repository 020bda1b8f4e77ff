"""Every error in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from labkit.errors import EngineClosedError, LabkitError, PromptTooLongError, StepFailedError
from serve.protocol import ChatRequest

INVALID, UNAVAILABLE, SERVER = "invalid_request_error", "service_unavailable", "server_error"


@dataclass
class ApiError(Exception):
    """What a client is told. status: of HTTP; kind, param, code: as in OpenAI's errors."""

    status: int
    message: str
    kind: str = INVALID
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def unavailable(message: str) -> ApiError:
    """503: try again in a moment."""
    return ApiError(503, message, UNAVAILABLE, headers={"Retry-After": "1"})


def model_not_found(name: str, served: str) -> ApiError:
    """404: the request names another model."""
    message = f"The model {_short(name)} is not served here. Use {served!r}."
    return ApiError(404, message, param="model", code="model_not_found")


def refused(error: LabkitError) -> ApiError:
    """A request that the engine does not take: the client's fault, unless the engine is closed or failed."""
    if isinstance(error, (EngineClosedError, StepFailedError)):
        return failed(error)
    code = "context_length_exceeded" if isinstance(error, PromptTooLongError) else None
    return ApiError(400, str(error), param=_field(error), code=code)


def _field(error: LabkitError) -> str | None:
    """The request's field that the message opens with, as in "top_p is 2."; None if it is about something else."""
    name = error.message.partition(" ")[0]
    return name if name in ChatRequest.model_fields else None


def failed(error: LabkitError) -> ApiError:
    """An answer that broke off: not the client's fault, whatever the error."""
    return unavailable(str(error)) if isinstance(error, EngineClosedError) else ApiError(500, str(error), SERVER)


def malformed(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """400 for what pydantic found: it names every unsupported field, else the first wrong one."""
    unsupported = [_path(error) for error in errors if error["type"] == "extra_forbidden"]
    if unsupported:
        names = ", ".join(map(_short, unsupported))
        message = f"Unsupported field{'s' * (len(unsupported) > 1)} {names}. Leave out what this server does not do."
        return ApiError(400, message, param=unsupported[0], code="unsupported_parameter")
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body is not valid JSON: {first['ctx']['error']}.")
    path = _path(first)
    return ApiError(400, f"{f'Field {_short(path)}' if path else 'The body'}: {first['msg']}.", param=path or None)


def error_response(error: ApiError) -> JSONResponse:
    """The error as a response."""
    return JSONResponse(error.body, error.status, dict(error.headers))


def install_handlers(app: FastAPI) -> None:
    """Make every error of the app leave it in this shape."""

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(LabkitError)
    async def on_labkit_error(request: Request, error: LabkitError) -> JSONResponse:
        return error_response(refused(error))

    @app.exception_handler(RequestValidationError)
    async def on_malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        if _lacks_json_header(request, error):
            message = "The body is not announced as JSON. Send the header Content-Type: application/json."
            return error_response(ApiError(400, message))
        return error_response(malformed(error.errors()))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        headers = error.headers or {}
        return error_response(ApiError(error.status_code, f"{error.detail}.", headers=headers))

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> JSONResponse:
        message = f"The server failed: {type(error).__name__}. Its log holds the cause."
        return error_response(ApiError(500, message, SERVER))


def _lacks_json_header(request: Request, error: RequestValidationError) -> bool:
    """FastAPI then takes the body for plain bytes, and finds that the body as a whole is wrong."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    whole = error.errors()[0]["loc"] == ("body",)
    return whole and not (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")))


def _path(error: Mapping[str, Any]) -> str:
    """Where the error lies, as in messages[0].content."""
    _, *parts = error["loc"]
    if error["type"] == "json_invalid":
        return ""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _short(name: str) -> str:
    """Quoted, printable whatever the client sent, and not longer than a line."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")
