from rolltap import ToolCall
from rolltap.testing import ScriptedTokenBackend, Serve, assert_every_cut

from rolltap_acme.parser import AcmeToolParser

CALL = '<acme>search {"query": "a <b>"}</acme>'
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


def test_calls_and_text_however_the_text_is_cut() -> None:
    assert_every_cut(
        AcmeToolParser,
        f"I look. {CALL} And <acme>now</acme>",
        ["I look. ", ToolCall("search", '{"query": "a <b>"}'), " And ", ToolCall("now", "{}")],
    )


def test_what_is_no_call_stays_text_and_spoils_no_other() -> None:
    text = "<acme>search {oops</acme>"
    assert_every_cut(AcmeToolParser, text, [text])
    assert_every_cut(AcmeToolParser, text + CALL, [text, ToolCall("search", '{"query": "a <b>"}')])


async def test_served(rolltap_serve: Serve, rolltap_tokenizer: str) -> None:
    backend = ScriptedTokenBackend(rolltap_tokenizer, [f"I look. {CALL}"])
    server = await rolltap_serve(backend, model={"tool_parser": "acme"})
    body = {"messages": [{"role": "user", "content": "Look."}], "tools": TOOLS}
    status, answer = await server.post("/v1/chat/completions", body)
    assert status == 200, answer
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("search", '{"query": "a <b>"}')
