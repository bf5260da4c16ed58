from rolltap.testing import ScriptedChatBackend, Serve

from rolltap_acme.errors import Busy, classify_error

BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}


async def test_it_is_answered_in_each_format(rolltap_serve: Serve) -> None:
    server = await rolltap_serve(ScriptedChatBackend([[Busy(7)], [Busy(7)]]))
    async with server.http.post("/v1/chat/completions", json=BODY) as response:
        assert (response.status, response.headers["retry-after"]) == (429, "7")
        error = (await response.json())["error"]
        assert (error["code"], error["message"]) == ("model_loading", "the model is ready in 7 s")
    status, answer = await server.post("/v1/messages", BODY)
    assert (status, answer["error"]["type"]) == (429, "rate_limit_error")


def test_other_errors_are_left_to_others() -> None:
    assert classify_error(ValueError("no")) is None
