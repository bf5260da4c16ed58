import pytest
from rolltap import ConfigError
from rolltap.testing import Serve

from rolltap_acme.backend import create_backend

BODY = {"messages": [{"role": "user", "content": "one two three"}]}
MODEL = {"backends": [{"kind": "acme"}]}


async def test_served(rolltap_serve: Serve) -> None:
    server = await rolltap_serve(model=MODEL)
    status, answer = await server.post("/v1/chat/completions", BODY)
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two three", "stop")


async def test_a_parameter_it_takes_and_one_it_does_not(rolltap_serve: Serve) -> None:
    server = await rolltap_serve(model=MODEL)
    status, answer = await server.post("/v1/chat/completions", {**BODY, "max_tokens": 2})
    assert status == 200, answer
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "length")
    status, answer = await server.post("/v1/chat/completions", {**BODY, "seed": 1})
    assert (status, answer["error"]["param"]) == (400, "seed")


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ConfigError, match="delay"):
        create_backend("acme", {"delay": 1})
    assert create_backend("another", {}) is None
