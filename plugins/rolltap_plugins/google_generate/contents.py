"""The conversation of a request in Google's form: contents of parts."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rolltap import Content, FilePart, ImagePart, Message, Part, TextPart, ToolCall
from rolltap_plugins.wire import json_text, read_body, refused

_PROVIDERS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts that tell of tools which run at the provider."""


class WirePart(Struct, rename="camel", kw_only=True):
    """A part of any kind: it has one of these fields, and marks beside it."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: dict[str, Any] | None = None
    file_data: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None
    function_response: dict[str, Any] | None = None
    executable_code: dict[str, Any] | None = None
    code_execution_result: dict[str, Any] | None = None
    tool_call: dict[str, Any] | None = None
    tool_response: dict[str, Any] | None = None


class WireContent(Struct, rename="camel", kw_only=True):
    """The parts of one turn. Without a role they are the user's."""

    role: str | None = None
    parts: list[WirePart] | None = None


def camel_keys(value: Any, opaque: frozenset[str]) -> Any:
    """JSON with its keys in Google's spelling, which also takes `snake_case`; what stands under `opaque` keys stays."""
    if isinstance(value, list):
        return [camel_keys(item, opaque) for item in value]
    if not isinstance(value, dict):
        return value
    spelled = {_camel(key): inner for key, inner in value.items()}
    return {key: inner if key in opaque else camel_keys(inner, opaque) for key, inner in spelled.items()}


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in rest) if head else key


def system_message(content: WireContent, where: str) -> Message | None:
    """The system instruction; None where it is empty."""
    texts = []
    for at, part in enumerate(content.parts or ()):
        if part.text is None:
            raise refused(f"{where}.parts[{at}]", "must be a text.")
        texts.append(part.text)
    text = "\n".join(filter(None, texts))
    return Message(role="system", content=text) if text else None


def history(contents: Sequence[WireContent]) -> list[Message]:
    """The neutral messages. Raises `BadRequest` that names what can't be one."""
    reading = _Reading()
    for at, content in enumerate(contents):
        where = f"contents[{at}]"
        if content.role == "model":
            reading.add_model(content, where)
        elif content.role in {None, "", "user", "function", "tool"}:
            reading.add_user(content, where)
        elif content.role == "system":
            system = system_message(content, where)
            reading.messages += [system] if system else []
        else:
            raise refused(f"{where}.role", f"is {content.role!r}; use user or model.")
    return reading.messages


class _Reading:
    """The messages so far, and the calls that have no result yet: results need not name the call's id."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open: list[ToolCall] = []
        self._calls = 0

    def add_model(self, content: WireContent, where: str) -> None:
        """Add the model's parts. Several turns of it in a row are one: clients keep the pieces of a stream so."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        extra: dict[str, Any] = {}
        for at, part in enumerate(content.parts or ()):
            if part.function_call is not None:
                calls.append(self._call(part, f"{where}.parts[{at}].functionCall"))
            elif part.text is not None:
                (thoughts if part.thought else texts).append(part.text)
                if part.thought_signature is not None:
                    extra = signed(part.thought_signature)
            elif (words := _providers_words(part)) is not None:
                texts.append(f"\n{words}\n")
            elif part.thought_signature is not None:
                extra = signed(part.thought_signature)
            else:
                raise refused(f"{where}.parts[{at}]", "can't be the model's: use text or functionCall.")
        said = Message(
            role="assistant",
            content="".join(texts) if texts else None,
            reasoning="".join(thoughts) or None,
            tool_calls=tuple(calls),
            extra=extra,
        )
        self._open += calls
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == "assistant":
            self.messages[-1] = _one(last, said)
        else:
            self.messages.append(said)

    def _call(self, part: WirePart, where: str) -> ToolCall:
        call = part.function_call or {}
        name, arguments = call.get("name"), call.get("args")
        if not isinstance(name, str) or not name:
            raise refused(f"{where}.name", "is missing.")
        if arguments is not None and not isinstance(arguments, dict):
            raise refused(f"{where}.args", "must be an object.")
        self._calls += 1
        call_id = call.get("id")
        named = call_id if isinstance(call_id, str) and call_id else f"call_{self._calls}"
        extra = {} if part.thought_signature is None else signed(part.thought_signature)
        return ToolCall(name, json_text(arguments or {}), named, extra)

    def add_user(self, content: WireContent, where: str) -> None:
        """Add each function's result as a message of its own; then the text and the attachments, if there are any."""
        parts: list[Part] = []
        results = 0
        for at, part in enumerate(content.parts or ()):
            inside = f"{where}.parts[{at}]"
            if part.function_response is not None:
                parts += self._result(part.function_response, f"{inside}.functionResponse")
                results += 1
            else:
                parts += _user_part(part, inside)
        if parts or not results:
            self.messages.append(Message(role="user", content=_joined(parts)))

    def _result(self, response: dict[str, Any], where: str) -> list[Part]:
        """Add a function's result; give the attachments in it, at which models look in user messages alone."""
        name = response.get("name")
        if not isinstance(name, str) or not name:
            raise refused(f"{where}.name", "is missing.")
        call_id = response.get("id")
        match = next((call for call in self._open if call_id and call.id == call_id), None)
        match = match or next((call for call in self._open if call.name == name), None)
        if match is not None:
            self._open.remove(match)
            call_id = match.id
        attachments: list[Part] = []
        parts = response.get("parts") or []
        if not (isinstance(parts, list) and all(isinstance(part, dict) for part in parts)):
            raise refused(f"{where}.parts", "must be an array of parts.")
        for at, part in enumerate(parts):
            attachments += _user_part(read_body(part, WirePart), f"{where}.parts[{at}]")
        self.messages.append(
            Message(
                role="tool",
                content=_result_text(response.get("response")),
                tool_call_id=call_id if isinstance(call_id, str) and call_id else f"call_{name}",
                name=name,
            )
        )
        return attachments


def signed(signature: str) -> dict[str, Any]:
    """A thought's signature as Google's own compatible endpoint writes it in Chat Completions."""
    return {"extra_content": {"google": {"thought_signature": signature}}}


def signature_in(extra: Mapping[str, Any]) -> str | None:
    """The signature that an upstream has put beside a call or a message."""
    match extra:
        case {"extra_content": {"google": {"thought_signature": str(signature)}}}:
            return signature
    return None


def _one(first: Message, second: Message) -> Message:
    return Message(
        role="assistant",
        content=first.text + second.text if first.content or second.content else None,
        reasoning=(first.reasoning or "") + (second.reasoning or "") or None,
        tool_calls=(*first.tool_calls, *second.tool_calls),
        extra={**first.extra, **second.extra},
    )


def _result_text(response: Any) -> str:
    """A result as a model reads it: the text that clients wrap into an object because the form demands one."""
    match response:
        case {"output": str(text), **rest} | {"result": str(text), **rest} if not rest:
            return text
        case {"error": str(text), **rest} if not rest:
            return f"Error: {text}"
        case None:
            return ""
    return json_text(response)


def _user_part(part: WirePart, where: str) -> list[Part]:
    if part.text is not None:
        return [TextPart(part.text)]
    if part.inline_data is not None:
        return [_inline(part.inline_data, f"{where}.inlineData")]
    if part.file_data is not None:
        uri = part.file_data.get("fileUri")
        if not isinstance(uri, str):
            raise refused(f"{where}.fileData.fileUri", "is missing.")
        return [_attachment(str(part.file_data.get("mimeType") or ""), uri, part.file_data)]
    words = _providers_words(part)
    if words is not None:
        return [TextPart(words)]
    raise refused(where, "can't be the user's: use text, inlineData, fileData or functionResponse.")


def _inline(data: dict[str, Any], where: str) -> Part:
    kind, encoded = data.get("mimeType"), data.get("data")
    if not isinstance(kind, str) or not isinstance(encoded, str):
        raise refused(where, "must have a mimeType and data in base64.")
    # Google's clients write base64 in the alphabet for URLs.
    plain = encoded.replace("-", "+").replace("_", "/")
    return _attachment(kind, f"data:{kind};base64,{plain}", data)


def _attachment(kind: str, url: str, fields: dict[str, Any]) -> Part:
    if kind.startswith("image/"):
        return ImagePart(url)
    return FilePart(media_type=kind, url=url, name=str(fields.get("displayName") or ""))


def _joined(parts: Sequence[Part]) -> Content:
    if all(isinstance(part, TextPart) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, TextPart))
    return tuple(parts)


def _providers_words(part: WirePart) -> str | None:
    match part:
        case WirePart(executable_code={"code": str(code)}):
            return f"[code was run:\n{code}]"
        case WirePart(code_execution_result=dict(result)):
            return f"[the code gave: {result.get('output') or result.get('outcome') or 'nothing'}]"
        case WirePart(tool_call=dict(call)):
            return f"[the provider's tool was called with {json_text(call)}]"
        case WirePart(tool_response=dict(response)):
            return f"[the provider's tool gave: {json_text(response)}]"
    return None
