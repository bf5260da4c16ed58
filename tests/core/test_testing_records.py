"""`assert_exact`: it holds for what the server records, and fails for every kind of damage."""

import pytest

from rolltap import Sampling, hookimpl
from rolltap.testing import ScriptedTokenBackend, TokenCall, assert_exact

FIRST = TokenCall([1, 2, 3], Sampling(), [[4, 5], [9]], [[-0.1, -0.2], [-0.9]])
SECOND = TokenCall([1, 2, 3, 4, 5, 6], Sampling(), [[7]], [[-0.3]])


def node(**changes):
    return {
        "tokens": [1, 2, 3, 4, 5, 6, 7],
        "masked_tokens": [-100, -100, -100, 4, 5, -100, 7],
        "logprobs": [1.0, 1.0, 1.0, -0.1, -0.2, 1.0, -0.3],
        **changes,
    }


def test_a_node_of_two_turns_and_one_choice_of_several():
    assert_exact(node(), SECOND, FIRST)
    assert_exact(
        {"tokens": [1, 2, 3, 9], "masked_tokens": [-100] * 3 + [9], "logprobs": [1.0] * 3 + [-0.9]},
        FIRST,
        choice=1,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1, 2, 8, 4, 5, 6, 7]}, r"tokens\[2\] is 8 in the record, and was 3 at the backend"),
        ({"tokens": [1, 2, 3, 4, 5, 6]}, "tokens has 6 entries in the record, and had 7 at the backend"),
        (
            {"masked_tokens": [-100] * 6 + [7]},
            r"masked_tokens\[3\] is -100 in the record, and was 4 at the backend",
        ),
        ({"masked_tokens": [-100, -100, -100, 4, 5, 6, 7]}, r"masked_tokens\[5\] is 6 in the record"),
        (
            {"logprobs": [1.0, 1.0, 1.0, -0.1, -0.2, 1.0, -0.30000001]},
            r"logprobs\[6\] is -0.30000001 in the record",
        ),
    ],
)
def test_each_damage_is_named_with_its_place(change, message):
    with pytest.raises(AssertionError, match=message):
        assert_exact(node(**change), SECOND, FIRST)


def test_a_turn_that_is_masked_must_not_be_named():
    with pytest.raises(AssertionError, match=r"masked_tokens\[3\] is 4 in the record, and was -100"):
        assert_exact(node(), SECOND)


async def test_what_a_recorder_is_given(rolltap_serve, rolltap_tokenizer):
    class Recorder:
        @hookimpl
        def record_node(self, node):
            seen.append(node)

    seen = []
    backend = ScriptedTokenBackend(rolltap_tokenizer, ["Hello."])
    server = await rolltap_serve(backend, plugins=[Recorder()])
    session = await server.session()
    await server.post(f"/{session}/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
    assert_exact(seen[0], backend.calls[0])
