import math

from rolltap.testing import Serve

BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "n": 2, "seed": 7}


async def test_every_token_is_recorded_with_its_logprob(rolltap_serve: Serve, rolltap_tokenizer: str) -> None:
    model = {"tokenizer": rolltap_tokenizer, "backends": [{"kind": "acme-tokens"}]}
    server = await rolltap_serve(model=model)
    session = await server.session()
    status, answer = await server.post(f"/{session}/v1/chat/completions", BODY)
    assert status == 200, answer
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    nodes = await server.nodes(session)
    assert len(nodes) == 2
    for node in nodes:
        assert node["metadata"]["trainable"]
        prompt, generated = node["tokens"][:-5], node["tokens"][-5:]
        assert node["masked_tokens"] == [-100] * len(prompt) + generated
        assert node["logprobs"][-5:] == [math.log(prompt.count(token) / len(prompt)) for token in generated]
