"""Replies that a session has kept, asked for by their ids: GET and DELETE /v1/responses/{id}, and its input items."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from rolltap import (
    BadRequest,
    ChatRequest,
    Choice,
    Completion,
    Message,
    NodeView,
    NotFound,
    Sampling,
    Server,
    ToolCall,
    Usage,
)
from rolltap_plugins.openai_dialects.responses.references import items_of
from rolltap_plugins.openai_dialects.responses.replies import envelope, finished
from rolltap_plugins.openai_dialects.responses.tools import ResponsesState

_SAMPLING = ("temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty")


class KeptReplies:
    """The handlers. Whoever knows a session's id may ask for its replies."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def add_routes(self) -> None:
        """Serve them, with and without a session in the path."""
        for prefix in ("", "/{sid}"):
            path = f"{prefix}/v1/responses/{{reply_id}}"
            self._server.add_route("GET", path, self.get, public=True)
            self._server.add_route("DELETE", path, self.delete, public=True)
            self._server.add_route("GET", f"{path}/input_items", self.input_items, public=True)

    async def get(self, request: web.Request) -> web.Response:
        """The reply again."""
        if request.query.get("stream", "false").lower() not in {"", "false", "0"}:
            raise BadRequest(
                "stream: a reply that is over can't be streamed again; leave it out.", param="stream"
            )
        _, node = await self._node(request)
        return web.json_response(_response(request.match_info["reply_id"], node))

    async def delete(self, request: web.Request) -> web.Response:
        """Nothing may go on from the reply by its id any more; what was recorded stays."""
        session, _ = await self._node(request)
        name = request.match_info["reply_id"]
        await self._server.forget_reply(session, name)
        return web.json_response({"id": name, "object": "response", "deleted": True})

    async def input_items(self, request: web.Request) -> web.Response:
        """What the reply answered, the newest first unless `order=asc`; `limit` and `after` as OpenAI has them."""
        _, node = await self._node(request)
        items = _input_items(request.match_info["reply_id"], node)
        query = request.query
        if query.get("order", "desc") != "asc":
            items.reverse()
        ids = [item["id"] for item in items]
        if query.get("after"):
            if query["after"] not in ids:
                raise BadRequest(f"after={query['after']!r} is none of the items", param="after")
            items = items[ids.index(query["after"]) + 1 :]
        limit = query.get("limit", "20")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= 100):
            raise BadRequest(f"limit={limit!r}: it is an integer from 1 to 100", param="limit")
        page = items[: int(limit)]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        more = len(items) > len(page)
        return web.json_response(
            {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": more}
        )

    async def _node(self, request: web.Request) -> tuple[str, NodeView]:
        session = await self._server.session_of(request)
        name = request.match_info["reply_id"]
        if session is None:
            raise NotFound(
                f"Response with id {name!r} not found: replies are kept within a session alone",
                code="response_not_found",
            )
        return session.uuid, await self._server.reply(session.uuid, name)


def _response(reply_id: str, node: NodeView) -> dict[str, Any]:
    """The response, from what the record has of it."""
    said, metadata = node.messages[-1], node.metadata
    counted = metadata["usage"]
    ended = int(metadata["times"]["ended"])
    text = "\n\n".join(_text(message) for message in node.messages[: metadata.get("num_instructions", 0)])
    request = ChatRequest(
        tools=tuple(dict(tool) for tool in node.tools),
        sampling=Sampling(**{name: metadata["sampling"].get(name) for name in _SAMPLING}),
        keep=True,
        state=ResponsesState(asked={"instructions": text} if text else {}),
    )
    completion = Completion(
        id=reply_id,
        model=metadata["model"],
        created=int(metadata["times"]["received"]),
        ended=ended,
        choices=[Choice(finish_reason=metadata["finish_reason"] or "abort")],
        usage=Usage(
            prompt_tokens=counted["prompt"],
            completion_tokens=counted["generated"],
            cached_tokens=counted["cached"],
        ),
    )
    items = items_of(reply_id, _message(said), request)
    return finished(envelope(request, completion), completion, items)


def _input_items(reply_id: str, node: NodeView) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for message in node.messages[node.metadata.get("num_instructions", 0) : -1]:
        name = f"{reply_id.partition('_')[2]}_in{len(items)}"
        match message["role"]:
            case "assistant":
                items += [
                    {**item, "id": f"{item['type'][:3]}_{name}_{at}"}
                    for at, item in enumerate(items_of(reply_id, _message(message)))
                ]
            case "tool":
                items.append(
                    {
                        "id": f"fco_{name}",
                        "type": "function_call_output",
                        "status": "completed",
                        "call_id": message.get("tool_call_id") or "",
                        "output": _text(message),
                    }
                )
            case role:
                content = _content(message["content"])
                items.append(
                    {
                        "id": f"msg_{name}",
                        "type": "message",
                        "status": "completed",
                        "role": role,
                        "content": content,
                    }
                )
    return items


def _content(content: str | Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return [{"type": "input_text", "text": content or ""}]
    return [_part(part) for part in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if part["type"] == "image_url":
        return {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
    return {"type": "input_file", **part["file"]}


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


def _message(said: Mapping[str, Any]) -> Message:
    """A message of the record, which is in Chat Completions' form, as a message again."""
    known = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
    calls = [
        ToolCall(name=call["function"]["name"], arguments=call["function"]["arguments"], id=call["id"])
        for call in said.get("tool_calls", ())
    ]
    return Message(
        role="assistant",
        content=_text(said),
        reasoning=said.get("reasoning_content"),
        tool_calls=tuple(calls),
        extra={name: value for name, value in said.items() if name not in known},
    )
