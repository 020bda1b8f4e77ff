"""/v1/chat/completions: one request from its arrival to its last byte, or to the moment its client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from labkit.engine.answer_stream import AnswerStream
from labkit.errors import LabkitError
from serve.errors import failed
from serve.prompt import prompt_ids, sampling_params
from serve.protocol import ChatRequest
from serve.replies import Json, Reply
from serve.service import Service

CLIENT_GONE = 499  # nginx's status for it; it appears in logs only


async def answer_chat(service: Service, request: ChatRequest, http: Request) -> Response:
    """Answer a chat, as a stream or whole. Raises ApiError or LabkitError for what is refused."""
    service.check_model(request.model)
    served = service.engine
    ids = await asyncio.to_thread(prompt_ids, served.engine, request)
    params = sampling_params(served.engine, request, len(ids))
    tokenizer = served.engine.tokenizer
    assert tokenizer is not None  # prompt_ids has refused a model without one
    reply = Reply(service.name, tokenizer, len(ids), request.include_usage)
    answers = await served.submit(ids, params)
    if request.stream:
        return AnswerResponse(answers, reply)
    return await _whole(answers, reply, http)


class AnswerResponse(StreamingResponse):
    """Sends the chunks as server-sent events; when it ends, in whatever way, so do the answers."""

    def __init__(self, answers: AnswerStream, reply: Reply) -> None:
        super().__init__(_events(answers, reply), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not in the generator: a client that leaves early enough is gone before the generator has begun.
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.abort()


async def _events(answers: AnswerStream, reply: Reply) -> AsyncIterator[str]:
    try:
        for index in range(len(answers.requests)):
            yield _event(reply.first_chunk(index))
        async for update in answers:
            for chunk in reply.news_chunks(update):
                yield _event(chunk)
    except LabkitError as error:  # the status line has long gone out: the error comes as an event, and no [DONE]
        yield _event(failed(error).body)
        return
    if reply.include_usage:
        yield _event(reply.usage_chunk(answers.requests))
    yield "data: [DONE]\n\n"


def _event(data: Json) -> str:
    # In ASCII: clients that split lines at every Unicode line break would cut the event in two.
    return f"data: {json.dumps(data)}\n\n"


async def _whole(answers: AnswerStream, reply: Reply, http: Request) -> Response:
    """Wait for all answers, or for the client to go away."""
    work = asyncio.create_task(answers.completions())
    gone = asyncio.create_task(_disconnected(http.receive))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(reply.whole(work.result())) if work.done() else Response(status_code=CLIENT_GONE)
    except LabkitError as error:
        raise failed(error) from error
    finally:
        answers.abort()
        work.cancel()
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
