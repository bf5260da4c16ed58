"""The dialect "openai.chat": Chat Completions, with vLLM's additional sampling parameters."""

from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

import rolltap
from rolltap import (
    BadRequest,
    ChatRequest,
    Completion,
    ErrorInfo,
    ErrorReply,
    Message,
    MessageConverter,
    ReadBefore,
    Replies,
    StreamEncoder,
    hookimpl,
)
from rolltap_plugins.openai_dialects.chat_reply import ChatState, ChatStream, chat_completion
from rolltap_plugins.openai_dialects.history import WireMessage, history
from rolltap_plugins.openai_dialects.replies import error_reply
from rolltap_plugins.openai_dialects.tools import Function, Tool, function_tools, tool_choice
from rolltap_plugins.wire import read_body, refused, unnamed
from rolltap_plugins.wire.sampling import (
    CLIENT_FIELDS,
    UPSTREAM_FIELDS,
    AtLeastOne,
    NotNegative,
    SamplingFields,
    StreamOptions,
    sampling,
    told,
)

DIALECT = "openai.chat"


class ChatBody(SamplingFields, kw_only=True):
    """The request's body."""

    messages: list[WireMessage]
    model: str | None = None
    max_completion_tokens: AtLeastOne | None = None
    logprobs: bool | None = None
    top_logprobs: NotNegative | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Function] | None = None
    function_call: str | dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: NotNegative | None = None
    return_token_ids: bool | None = None
    modalities: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class CheckedBody(ChatBody, kw_only=True):
    """The same, from a client: a conversation has a message."""

    messages: Annotated[list[WireMessage], Meta(min_length=1)]


class ChatConverter(MessageConverter):
    """Chat Completions in and out."""

    dialect = DIALECT
    id_prefix = "chatcmpl-"

    def decode(self, body: dict[str, Any]) -> ChatRequest:
        """See `MessageConverter.decode`. A parameter without a name here goes to the backend in `extra`."""
        return _decode(read_body(body, CheckedBody), body)

    def decode_next(self, body: dict[str, Any], replies: Replies, before: ReadBefore) -> ChatRequest:  # noqa: ARG002
        """See `MessageConverter.decode_next`. Each message is read for itself, and those that are known are not again."""
        known = before.known("messages", body.get("messages"))
        if not known:
            request = self.decode(body)
        else:
            new = {**body, "messages": body["messages"][len(known) :]}
            try:
                request = _decode(read_body(new, ChatBody), new, known)
            except BadRequest:
                return self.decode(body)  # whose error names the message by its place
        before.keep("messages", body["messages"], request.messages)
        return request

    def decode_leniently(self, body: dict[str, Any]) -> ChatRequest:
        """See `MessageConverter.decode_leniently`: no message at all is taken, and tools that are bare functions."""
        tools = [
            {"type": "function", "function": tool} if _is_bare(tool) else tool
            for tool in body.get("tools") or ()
        ]
        body = {**body, "messages": body.get("messages") or [], "tools": tools}
        return _decode(read_body(body, ChatBody), body)

    def encode(self, request: ChatRequest, completion: Completion) -> dict[str, Any]:
        """See `MessageConverter.encode`."""
        return chat_completion(request, completion)

    def stream(self, request: ChatRequest, completion: Completion) -> StreamEncoder:
        """See `MessageConverter.stream`."""
        return ChatStream(request, completion)

    def error(self, info: ErrorInfo, request_id: str) -> ErrorReply:
        """See `MessageConverter.error`."""
        return error_reply(info, request_id)


def _is_bare(tool: Any) -> bool:
    """Whether a tool is a function without what should be around it."""
    return isinstance(tool, dict) and "name" in tool and "function" not in tool


def _decode(chat: ChatBody, body: dict[str, Any], before: Sequence[Message] = ()) -> ChatRequest:
    """The request that the body is, whose messages follow those that have been read before."""
    if any(kind != "text" for kind in chat.modalities or ()):
        raise refused("modalities", "may hold nothing but text.")
    tools, freeform, choice = _tools(chat, body)
    template_kwargs = dict(chat.chat_template_kwargs or {})
    if chat.reasoning_effort is not None:
        template_kwargs["reasoning_effort"] = chat.reasoning_effort
    extra = unnamed(body, ChatBody.__struct_fields__, CLIENT_FIELDS, UPSTREAM_FIELDS)
    if chat.prompt_logprobs is not None:
        if chat.stream:
            raise refused("prompt_logprobs", "can't be asked for in a stream: they come with the end.")
        extra["prompt_logprobs"] = chat.prompt_logprobs
    options = chat.stream_options or StreamOptions()
    return ChatRequest(
        model=chat.model or "",
        messages=(*before, *history(chat.messages, body["messages"])),
        tools=tuple(tools),
        tool_choice=choice,
        parallel_tool_calls=chat.parallel_tool_calls,
        sampling=sampling(
            chat,
            max_tokens=_max_tokens(chat),
            top_logprobs=_top_logprobs(chat),
            extra=extra,
        ),
        template_kwargs=template_kwargs,
        stream=bool(chat.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(chat.stream and options.continuous_usage_stats),
        return_token_ids=bool(chat.return_token_ids),
        client_fields=told(body, CLIENT_FIELDS),
        upstream=told(body, UPSTREAM_FIELDS),
        state=ChatState(functions=bool(chat.functions), freeform=freeform),
    )


def _tools(
    chat: ChatBody, body: dict[str, Any]
) -> tuple[list[dict[str, Any]], frozenset[str], rolltap.ToolChoice]:
    """The tools that may be called, which of them are freeform, and the choice; deprecated functions are tools too."""
    freeform: frozenset[str] = frozenset()
    if chat.tools and chat.functions:
        raise refused("functions", "is the deprecated name of tools; send one of the two.")
    if chat.functions:
        tools = [{"type": "function", "function": function} for function in body["functions"]]
    else:
        tools, freeform = function_tools(chat.tools, body.get("tools") or ())
    asked = chat.function_call if chat.functions else chat.tool_choice
    choice, allowed = tool_choice(asked, [tool["function"]["name"] for tool in tools])
    return [tool for tool in tools if tool["function"]["name"] in allowed], freeform, choice


def _max_tokens(chat: ChatBody) -> int | None:
    if chat.max_completion_tokens is None:
        return chat.max_tokens
    if chat.max_tokens not in {None, chat.max_completion_tokens}:
        raise refused("max_tokens", "is the deprecated name of max_completion_tokens; the two differ.")
    return chat.max_completion_tokens


def _top_logprobs(chat: ChatBody) -> int | None:
    if chat.logprobs:
        return chat.top_logprobs or 0
    if chat.top_logprobs:
        raise refused("top_logprobs", "needs logprobs to be true.")
    return None


@hookimpl
def message_converter(dialect: str) -> MessageConverter | None:
    """The converter for "openai.chat"."""
    return ChatConverter() if dialect == DIALECT else None


@hookimpl
def register_routes(app: web.Application) -> None:
    """POST /v1/chat/completions."""
    rolltap.add_dialect(app, DIALECT, "/v1/chat/completions")


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"message_converter": [DIALECT]}
