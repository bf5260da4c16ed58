"""Strange requests to every endpoint: a short run of what `tests/bench/fuzz_endpoints.py` does for longer."""

from endpoint_fuzz import fuzz


async def test_no_request_makes_the_server_fail_or_hang(rolltap_tokenizer):
    statuses = await fuzz(rolltap_tokenizer, 1000, seed=1)
    assert statuses.total() == 1000
    assert {200, 400, 404, 405} <= statuses.keys()
