"""A small HTTP server over the engine, in the shape of the OpenAI API. Needs the extra ``serve``.

python -m serve -m labkit-tiny          # or: labkit serve -m labkit-tiny
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labkit.errors import MissingExtraError

__all__ = ["run"]

PACKAGES = ("fastapi", "uvicorn", "pydantic")


def run(
    model: str | Path = "smollm2",
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    served_model_name: str | None = None,
    **settings: Any,
) -> None:
    """Load a model and serve it until SIGTERM or Ctrl-C.

    host, port: where to listen; port 0 takes a free one. served_model_name: what clients call the model,
    by default as ``model`` says. settings: further fields of EngineConfig.
    Raises MissingExtraError, ConfigError (settings, or an address that is in use), or what loading the model raises.
    """
    _require_extra()
    from serve.server import serve_model

    serve_model(str(model), host, port, served_model_name or str(model), settings)


def _require_extra() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The server needs {', '.join(missing)}, which is not installed.",
            cure="Run: python -m pip install 'labkit-v100[serve]'",
        )
