from rolltap.testing import ScriptedChatBackend, Serve

BODY = {"messages": [{"role": "user", "content": "Hello"}]}


async def test_a_session_is_sent_where_it_says(rolltap_serve: Serve) -> None:
    server = await rolltap_serve(ScriptedChatBackend(), ScriptedChatBackend(["One.", "Two."]))
    session = await server.session(metadata={"backend": "given-1"})
    for expected in ("One.", "Two."):
        status, answer = await server.post(f"/{session}/v1/chat/completions", BODY)
        assert status == 200, answer
        assert answer["choices"][0]["message"]["content"] == expected


async def test_without_a_wish_the_choice_is_left_to_others(rolltap_serve: Serve) -> None:
    server = await rolltap_serve(ScriptedChatBackend(["One.", "Two."]))
    session = await server.session(metadata={"backend": "elsewhere"})
    for path in (f"/{session}/v1/chat/completions", "/v1/chat/completions"):
        status, answer = await server.post(path, BODY)
        assert status == 200, answer
