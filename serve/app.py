"""The app: its routes."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from serve.chat import answer_chat
from serve.errors import install_handlers
from serve.protocol import ChatRequest
from serve.replies import Json, model_card
from serve.service import Service, Source


def create_app(source: Source, served_name: str) -> FastAPI:
    """The server as an ASGI app.

    source: a loaded LLM or Engine, or a function that loads one in the background.
    served_name: what clients call the model. ``app.state.service`` tells how it stands.
    """
    service = Service(source, served_name)
    # No /docs page: it would load its scripts from the network.
    app = FastAPI(title="labkit", lifespan=service.lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    install_handlers(app)
    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> JSONResponse:
        """200 once the model answers, 503 before and after."""
        reason: Json = {"error": str(service.error)} if service.error else {}
        return JSONResponse({"status": service.status} | reason, 200 if service.status == "ok" else 503)

    @app.get("/v1/models")
    async def models() -> Json:
        return {"object": "list", "data": [model_card(service.name, service.created)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Json:
        service.check_model(name)
        return model_card(service.name, service.created)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: ChatRequest, http: Request) -> Response:
        return await answer_chat(service, request, http)
