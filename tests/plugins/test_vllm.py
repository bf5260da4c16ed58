"""The vLLM backend against a scripted server that speaks both endpoints as vLLM does."""

import asyncio
import base64
import importlib.util
import time
from contextlib import aclosing

import aiohttp
import msgspec
import pytest
from aiohttp import web

from rolltap import BadRequest, Sampling, TokenRequest, Unsupported, UpstreamError
from rolltap_plugins.vllm import Options, VLLMBackend, create_backend
from scripted_vllm import Choice, ScriptedVLLM, frame, refusal

PROMPT = [1, 4, 1, 5]
GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"


@pytest.fixture
async def connect(aiohttp_server):
    """A function that starts a scripted server and a backend for it."""
    backends = []

    async def start(engine, **options):
        server = await aiohttp_server(engine.app())
        backend = VLLMBackend(Options.read({"url": str(server.make_url("/")), **options}, "name"), "name")
        backends.append(backend)
        await backend.start()
        return backend

    yield start
    for backend in backends:
        await backend.close()


def asking(prompt=PROMPT, *, stream=True, **sampling):
    return TokenRequest(prompt_ids=prompt, sampling=Sampling(**sampling), stream=stream)


async def collect(backend, **asked):
    return [delta async for delta in backend.generate(asking(**asked))]


def joined(deltas, index=0):
    mine = [delta for delta in deltas if delta.index == index]
    return [token for delta in mine for token in delta.token_ids], [
        value for delta in mine for value in delta.logprobs
    ]


@pytest.fixture(params=["generate", "completions"])
def endpoint(request):
    return request.param


# ---- what comes back


async def test_ids_and_logprobs_are_the_servers_own(connect, endpoint):
    backend = await connect(ScriptedVLLM(), endpoint=endpoint)
    deltas = await collect(backend)
    assert joined(deltas) == ([7, 8, 2], [-0.5, -0.25, -1.5])
    assert [delta.finish_reason for delta in deltas] == [None, None, "stop"]
    assert [delta.prompt_token_ids for delta in deltas] == [PROMPT, None, None]
    assert {delta.logprobs_mode for delta in deltas} == {"raw_logprobs"}
    assert all(delta.top_logprobs is None for delta in deltas)


async def test_several_tokens_may_come_in_one_event(connect, endpoint):
    backend = await connect(ScriptedVLLM(tokens_an_event=2), endpoint=endpoint)
    deltas = await collect(backend)
    assert [delta.token_ids for delta in deltas] == [[7, 8], [2]]
    assert joined(deltas)[1] == [-0.5, -0.25, -1.5]


@pytest.mark.parametrize("cut", [1, 7, 64])
async def test_frames_may_be_cut_anywhere(connect, endpoint, cut):
    whole = await collect(await connect(ScriptedVLLM(), endpoint=endpoint))
    assert await collect(await connect(ScriptedVLLM(cut=cut), endpoint=endpoint)) == whole


async def test_choices_are_told_apart(connect, endpoint):
    choices = [Choice([(7, -0.5), (2, -0.1)]), Choice([(9, -0.2)], finish_reason="length")]
    backend = await connect(ScriptedVLLM(choices), endpoint=endpoint)
    deltas = await collect(backend, n=2)
    assert joined(deltas, 0) == ([7, 2], [-0.5, -0.1])
    assert joined(deltas, 1) == ([9], [-0.2])
    assert {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason} == {
        0: "stop",
        1: "length",
    }


@pytest.mark.parametrize("missing", [None, -9999.0])
async def test_a_missing_logprob_is_not_made_up(connect, endpoint, missing):
    choice = Choice([(7, -0.5), (8, missing), (2, -1.5)])
    deltas = await collect(await connect(ScriptedVLLM([choice]), endpoint=endpoint))
    assert [delta.token_ids for delta in deltas] == [[7], [8], [2]]
    assert [delta.logprobs for delta in deltas] == [[-0.5], None, [-1.5]]


async def test_logprobs_of_another_number_than_ids_are_none(connect, endpoint):
    engine = ScriptedVLLM()
    event = getattr(engine, f"{endpoint}_event")(0, engine.choices[0], 0, 3, PROMPT)
    logprobs = event["choices"][0]["logprobs"]
    for values in logprobs.values():
        values.pop()
    engine.frames = [frame(event), b"data: [DONE]\n\n"]
    (delta,) = await collect(await connect(engine, endpoint=endpoint), top_logprobs=1)
    assert delta.token_ids == [7, 8, 2]
    assert delta.logprobs is None
    assert delta.top_logprobs is None


async def test_a_server_that_does_not_echo_has_no_echo(connect, endpoint):
    deltas = await collect(await connect(ScriptedVLLM(echo=False), endpoint=endpoint))
    assert all(delta.prompt_token_ids is None for delta in deltas)


async def test_older_servers_say_the_ids_in_the_logprobs_names(connect):
    deltas = await collect(await connect(ScriptedVLLM(scale_out=False, returns_ids=False)))
    assert joined(deltas) == ([7, 8, 2], [-0.5, -0.25, -1.5])
    assert all(delta.prompt_token_ids is None for delta in deltas)


async def test_a_server_without_any_ids_can_not_be_used(connect):
    backend = await connect(ScriptedVLLM(scale_out=False, returns_ids=False, names_ids=False))
    with pytest.raises(UpstreamError, match=r"returned no token ids.*too old") as caught:
        await collect(backend)
    assert caught.value.status is None


async def test_alternatives_come_by_their_ids(connect, endpoint):
    alternatives = [{7: -0.5, 70: -1.0}, {8: -0.25, 80: -2.0}]
    choice = Choice([(7, -0.5), (8, -0.25)], alternatives=alternatives)
    deltas = await collect(await connect(ScriptedVLLM([choice]), endpoint=endpoint), top_logprobs=2)
    assert [delta.top_logprobs for delta in deltas] == [[alternatives[0]], [alternatives[1]]]


async def test_stop_reason_and_the_engines_own_stop(connect, endpoint):
    stopped = Choice([(7, -0.5)], stop_reason="END")
    (delta,) = await collect(await connect(ScriptedVLLM([stopped]), endpoint=endpoint))
    assert (delta.finish_reason, delta.stop_reason) == ("stop", "END")
    repeating = Choice([(7, -0.5)], finish_reason="repetition", stop_reason="repetition_detected")
    (delta,) = await collect(await connect(ScriptedVLLM([repeating]), endpoint=endpoint))
    assert (delta.finish_reason, delta.stop_reason) == ("stop", "repetition_detected")


async def test_an_unknown_finish_reason_is_not_guessed_at(connect, endpoint):
    with pytest.raises(UpstreamError, match="'eaten'"):
        await collect(
            await connect(ScriptedVLLM([Choice([(7, -0.5)], finish_reason="eaten")]), endpoint=endpoint)
        )


async def test_cached_tokens_are_reported(connect, endpoint):
    deltas = await collect(await connect(ScriptedVLLM(cached_tokens=3), endpoint=endpoint))
    assert [delta.cached_tokens for delta in deltas] == [None, None, None, 3]
    assert joined(deltas)[0] == [7, 8, 2]


async def test_experts_and_masks_come_as_bytes_of_the_whole_choice(connect):
    npy = b"\x93NUMPY..."
    masks = [[7, 70], [8], [2, 3]]
    tokens = [(7, -0.5), (8, -0.25), (2, -1.5)]
    choice = Choice(tokens, experts=base64.b64encode(npy).decode(), masks=masks)
    deltas = await collect(await connect(ScriptedVLLM([choice])))
    assert [delta.routed_experts for delta in deltas] == [None, None, npy]
    assert [delta.sampling_mask is None for delta in deltas] == [True, True, False]
    assert msgspec.msgpack.decode(deltas[-1].sampling_mask) == masks


# ---- which endpoint, which weights


@pytest.mark.parametrize(("scale_out", "path"), [(True, GENERATE), (False, COMPLETIONS)])
async def test_the_server_is_asked_once_which_endpoint_it_has(connect, scale_out, path):
    engine = ScriptedVLLM(scale_out=scale_out)
    backend = await connect(engine)
    await asyncio.gather(*(collect(backend) for _ in range(5)))
    assert [asked[0] for asked in engine.asked] == [path] * 5
    assert engine.probes == int(scale_out)


async def test_weight_versions_are_the_engines_spans(connect):
    deltas = await collect(await connect(ScriptedVLLM(weight_version="v7")))
    assert [delta.weight_versions for delta in deltas] == [None, None, [[0, 3, "v7"]]]
    (whole,) = await collect(await connect(ScriptedVLLM(weight_version="12")), stream=False)
    assert whole.weight_versions == [[0, 3, 12]]


async def test_weights_that_nobody_gave_a_version_have_none(connect):
    (whole,) = await collect(await connect(ScriptedVLLM(weight_version="default")), stream=False)
    assert whole.weight_versions is None


async def test_without_spans_the_version_at_dispatch_is_kept(connect):
    engine = ScriptedVLLM(scale_out=False, development=True, weight_version="v1")
    backend = await connect(engine)
    await collect(backend)
    engine.weight_version = "v2"
    deltas = await collect(backend)
    assert deltas[-1].weight_versions == [[0, 3, "v2"]]


async def test_weights_that_changed_meanwhile_are_told_as_both(connect):
    engine = ScriptedVLLM(scale_out=False, development=True, weight_version="1", pause=0.02)
    backend = await connect(engine)
    async with aclosing(backend.generate(asking())) as deltas:
        seen = []
        async for delta in deltas:
            engine.weight_version = "2"
            seen.append(delta.weight_versions)
    assert seen[-1] == [[0, 3, [1, 2]]]


async def test_a_server_that_tells_no_version_has_none(connect):
    deltas = await collect(await connect(ScriptedVLLM(scale_out=False)))
    assert deltas[-1].weight_versions is None


async def test_the_logprobs_mode_is_asked_of_the_server_unless_told(connect):
    engine = ScriptedVLLM(development=True, logprobs_mode="processed_logprobs")
    assert (await collect(await connect(engine)))[0].logprobs_mode == "processed_logprobs"
    told = await connect(engine, logprobs_mode="raw_logprobs")
    assert (await collect(told))[0].logprobs_mode == "raw_logprobs"


# ---- the server comes, goes and changes


async def test_start_needs_no_server_and_requests_do(aiohttp_server, unused_tcp_port):
    backend = VLLMBackend(Options(url=f"http://127.0.0.1:{unused_tcp_port}"), "name")
    started = time.monotonic()
    await backend.start()
    assert time.monotonic() - started < 1
    with pytest.raises(aiohttp.ClientConnectorError):
        await collect(backend)
    await aiohttp_server(ScriptedVLLM().app(), port=unused_tcp_port)
    assert joined(await collect(backend))[0] == [7, 8, 2]
    await backend.close()


async def test_a_server_that_lost_its_token_endpoint_is_asked_again(connect):
    engine = ScriptedVLLM()
    backend = await connect(engine)
    await collect(backend)
    engine.scale_out = False
    assert joined(await collect(backend))[0] == [7, 8, 2]
    assert [asked[0] for asked in engine.asked] == [GENERATE, COMPLETIONS]


async def test_a_server_that_serves_another_model_is_asked_again(connect, endpoint):
    engine = ScriptedVLLM()
    backend = await connect(engine, endpoint=endpoint)
    await collect(backend)
    engine.model = "another"
    assert joined(await collect(backend))[0] == [7, 8, 2]
    assert [asked[1]["model"] for asked in engine.asked] == ["served", "served", "another"]


async def test_a_model_that_is_not_served_is_a_404(connect, endpoint):
    engine = ScriptedVLLM()
    backend = await connect(engine, endpoint=endpoint, model="other")
    with pytest.raises(UpstreamError, match="`other` does not exist") as caught:
        await collect(backend)
    assert caught.value.status == 404
    assert len(engine.asked) == 1


async def test_a_forced_token_endpoint_that_is_off_says_so(connect):
    with pytest.raises(UpstreamError, match="Scale-out endpoints are disabled") as caught:
        await collect(await connect(ScriptedVLLM(scale_out=False), endpoint="generate"))
    assert caught.value.status == 403


async def test_after_a_torn_connection_the_server_is_asked_again(connect):
    engine = ScriptedVLLM(pause=0.01)
    backend = await connect(engine)
    await collect(backend)

    async def tear(request, body, prompt, event):
        request.transport.abort()
        return web.Response()

    engine._answer, answer = tear, engine._answer
    with pytest.raises(aiohttp.ClientConnectionError):
        await collect(backend)
    engine._answer = answer
    await collect(backend)
    assert engine.probes == 2


# ---- cancelling


async def test_closing_the_generator_closes_the_connection(connect, endpoint):
    engine = ScriptedVLLM([Choice([(7, -0.5)] * 500)], pause=0.01)
    backend = await connect(engine, endpoint=endpoint)
    async with aclosing(backend.generate(asking())) as deltas:
        async for delta in deltas:
            assert delta.token_ids == [7]
            assert engine.running == 1
            break
    await until(lambda: engine.running == 0)


async def test_cancelling_the_reader_closes_the_connection(connect, endpoint):
    engine = ScriptedVLLM([Choice([(7, -0.5)] * 500)], pause=0.01)
    backend = await connect(engine, endpoint=endpoint)
    task = asyncio.create_task(collect(backend))
    await until(lambda: engine.running == 1)
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: engine.running == 0)


async def until(condition):
    for _ in range(300):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not happen within 3 s")


# ---- whole replies, where nobody reads a stream


async def test_a_whole_reply_is_the_same_as_its_stream(connect, endpoint):
    alternatives = [{7: -0.5, 70: -1.0}, {8: -0.25, 80: -2.0}, {2: -1.5, 20: -3.0}]
    first = Choice([(7, -0.5), (8, -0.25), (2, -1.5)], stop_reason="END", alternatives=alternatives)
    choices = [first, Choice([(9, -0.2)], finish_reason="length", alternatives=[{9: -0.2}])]
    engine = ScriptedVLLM(choices, cached_tokens=2)
    backend = await connect(engine, endpoint=endpoint)
    streamed, whole = [await collect(backend, n=2, top_logprobs=2, stream=stream) for stream in (True, False)]
    assert len(whole) == 3 < len(streamed)
    for index in (0, 1):
        assert joined(whole, index) == joined(streamed, index)
        assert ends(whole, index) == ends(streamed, index)
        tops = [
            [top for d in ds if d.index == index for top in d.top_logprobs or ()] for ds in (whole, streamed)
        ]
        assert tops[0] == tops[1]
    assert whole[0].prompt_token_ids == PROMPT
    assert whole[-1].cached_tokens == 2
    assert [body["stream"] for _, body, _ in engine.asked] == [True, False]
    assert "stream_options" not in engine.asked[1][1]


def ends(deltas, index):
    return [
        (d.finish_reason, d.stop_reason, d.weight_versions)
        for d in deltas
        if d.index == index and d.finish_reason
    ]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [[(7, -0.5)], []])
async def test_an_engines_abort_comes_through(connect, endpoint, stream, tokens):
    engine = ScriptedVLLM([Choice(tokens, finish_reason="abort")])
    if stream and not tokens:
        event = getattr(engine, f"{endpoint}_event")(0, engine.choices[0], 0, 1, PROMPT)
        engine.frames = [frame(event), b"data: [DONE]\n\n"]
    deltas = await collect(await connect(engine, endpoint=endpoint), stream=stream)
    assert [delta.finish_reason for delta in deltas] == ["abort"]
    assert joined(deltas) == ([token for token, _ in tokens], [logprob for _, logprob in tokens])


async def test_closing_a_whole_reply_closes_the_connection(connect, endpoint):
    engine = ScriptedVLLM(pause=30)
    task = asyncio.create_task(collect(await connect(engine, endpoint=endpoint), stream=False))
    await until(lambda: engine.running == 1)
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: engine.running == 0)


async def test_nothing_after_the_end_is_read(connect, endpoint):
    engine = ScriptedVLLM()
    frames = engine._frames(PROMPT, getattr(engine, f"{endpoint}_event"))
    engine.frames = [b"".join([*frames, b"data: {oops\n\n", frames[0]])]
    assert joined(await collect(await connect(engine, endpoint=endpoint))) == ([7, 8, 2], [-0.5, -0.25, -1.5])


SHAPES = [
    b"[]", b"3", b"null", b'{"choices": 3}', b'{"choices": [3]}', b'{"choices": {"index": 0}}',
    b'{"choices": [{"index": "0"}]}', b'{"choices": [{"index": 7, "token_ids": []}]}',
    b'{"choices": [{"index": -1, "token_ids": []}]}', b'{"choices": [{"token_ids": ["7"]}]}',
    b'{"choices": [{"token_ids": [-7]}]}', b'{"choices": [{"token_ids": [4294967296]}]}',
    b'{"choices": [{"token_ids": [7], "finish_reason": 4}]}', b'{"choices": [{"token_ids": [7], "logprobs": []}]}',
    b'{"choices": [{"token_ids": [7], "logprobs": {"content": [{"token_id": 7, "logprob": "-0.5"}]}}]}',
    b'{"choices": [{"token_ids": [7], "weight_versions": [["1", 0, 1]]}]}', b'{"usage": []}',
    b'{"choices": [{"token_ids": [7], "routed_experts": "%%%"}]}', b'{"prompt_token_ids": ["1"]}',
    b'{"choices": [{"logprobs": {"tokens": ["token_id:x"], "content": [{"token_id": null}]}}]}', b"\xff{}",
    b'{"choices": [{"token_ids": [7]}]', b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[:60])
async def test_an_answer_of_another_shape_is_the_upstreams_fault(connect, endpoint, shape, stream):
    engine = ScriptedVLLM(frames=[b"data: " + shape + b"\n\n"], whole=shape)
    with pytest.raises(UpstreamError) as caught:
        await collect(await connect(engine, endpoint=endpoint), stream=stream)
    assert caught.value.status is None


# ---- errors


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens. However, your prompt contains 3000 input tokens",
        "The decoder prompt (length 3000) is longer than the maximum model length of 2048.",
    ],
)
async def test_a_prompt_that_is_too_long(connect, endpoint, message):
    backend = await connect(
        ScriptedVLLM(error=lambda: refusal(400, message, "BadRequestError")), endpoint=endpoint
    )
    with pytest.raises(UpstreamError, match=r"answered 400: .*length") as caught:
        await collect(backend)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


async def test_a_refusal_keeps_status_and_retry_after(connect, endpoint):
    def error():
        return refusal(429, "queue is full", "RateLimit", **{"Retry-After": "7"})

    with pytest.raises(UpstreamError, match="queue is full") as caught:
        await collect(await connect(ScriptedVLLM(error=error), endpoint=endpoint))
    assert (caught.value.status, caught.value.code, caught.value.headers["retry-after"]) == (429, None, "7")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, '{"object": "error", "message": "flat and old", "code": 500}', "flat and old"),
        (500, '{"detail": "of FastAPI"}', "of FastAPI"),
        (502, "<h1>Bad gateway</h1>", "answered 502"),
        (502, "Bad gateway", "Bad gateway"),
        (307, "", "a redirect, which is not followed"),
        (503, "", "answered 503"),
    ],
)
async def test_errors_of_other_shapes(connect, endpoint, status, body, said):
    engine = ScriptedVLLM(error=lambda: web.Response(text=body, status=status))
    with pytest.raises(UpstreamError, match=said) as caught:
        await collect(await connect(engine, endpoint=endpoint))
    assert caught.value.status == status


async def test_an_error_inside_the_stream(connect, endpoint):
    event = {"error": {"message": "Token id 99 is out of vocabulary", "type": "BadRequestError", "code": 400}}
    engine = ScriptedVLLM(frames=[frame(event), b"data: [DONE]\n\n"])
    with pytest.raises(UpstreamError, match="out of vocabulary") as caught:
        await collect(await connect(engine, endpoint=endpoint))
    assert caught.value.status == 400


async def test_a_stream_that_ends_early(connect, endpoint):
    engine = ScriptedVLLM()
    engine.frames = engine._frames(PROMPT, getattr(engine, f"{endpoint}_event"))[:2]
    with pytest.raises(UpstreamError, match="ended before all of its choices did") as caught:
        await collect(await connect(engine, endpoint=endpoint))
    assert caught.value.status is None


async def test_a_choice_that_is_missing_is_an_early_end(connect, endpoint):
    with pytest.raises(UpstreamError, match="ended before"):
        await collect(await connect(ScriptedVLLM(), endpoint=endpoint), n=2)


async def test_an_answer_that_is_no_event_stream(connect, endpoint):
    engine = ScriptedVLLM(error=lambda: web.Response(text="hello", content_type="text/html"))
    with pytest.raises(UpstreamError, match="'text/html' in place of an event stream"):
        await collect(await connect(engine, endpoint=endpoint))


async def test_an_event_that_is_not_json(connect, endpoint):
    with pytest.raises(UpstreamError, match=r"not JSON .*: b'\{oops'"):
        await collect(await connect(ScriptedVLLM(frames=[b"data: {oops\n\n"]), endpoint=endpoint))


async def test_silence_ends_a_reply(connect, endpoint):
    engine = ScriptedVLLM([Choice([(7, -0.5)] * 5)], pause=0.5)
    with pytest.raises(TimeoutError):
        await collect(await connect(engine, endpoint=endpoint, timeout_s=0.2))


# ---- what is sent


async def test_the_key_is_sent_and_the_name_is_the_servers(connect, endpoint, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret")
    engine = ScriptedVLLM()
    await collect(await connect(engine, endpoint=endpoint, api_key_env="SOME_KEY"))
    _, body, headers = engine.asked[0]
    assert headers["Authorization"] == "Bearer secret"
    assert body["model"] == "served"
    assert body["stream"] is body["return_token_ids"] is True
    assert body.get("token_ids") == PROMPT or body.get("prompt") == PROMPT


async def test_a_parameter_of_one_endpoint_alone_takes_the_request_there(connect):
    engine = ScriptedVLLM()
    backend = await connect(engine)
    await collect(backend, extra={"truncate_prompt_tokens": 3})
    await collect(backend, extra={"skip_reading_prefix_cache": True})
    assert [asked[0] for asked in engine.asked] == [COMPLETIONS, GENERATE]


@pytest.mark.parametrize(
    ("forced", "name"), [("generate", "truncate_prompt_tokens"), ("completions", "skip_reading_prefix_cache")]
)
async def test_a_parameter_that_the_endpoint_lacks_is_refused(connect, forced, name):
    engine = ScriptedVLLM()
    with pytest.raises(BadRequest, match=name) as caught:
        await collect(await connect(engine, endpoint=forced), extra={name: 1})
    assert caught.value.info.param == name
    assert not engine.asked


async def test_what_says_nothing_about_the_tokens_goes_too(connect, endpoint):
    engine = ScriptedVLLM()
    backend = await connect(engine, endpoint=endpoint)
    plain = TokenRequest(prompt_ids=PROMPT, sampling=Sampling(), request_id="r1")
    salted = TokenRequest(
        prompt_ids=PROMPT,
        sampling=Sampling(extra={"cache_salt": "mine"}),
        request_id="r1",
        priority=-2,
        cache_salt="7",
    )
    for request in (plain, salted):
        async for _ in backend.generate(request):
            pass
    first, second = (body for _, body, _ in engine.asked)
    assert first.keys().isdisjoint({"priority", "cache_salt"})
    assert (second["priority"], second["cache_salt"]) == (-2, "mine:7")
    assert first["request_id"] != second["request_id"]
    assert all(body["request_id"].startswith("r1-") for body in (first, second))


# ---- weights


async def test_pauses_and_versions_reach_the_engine(connect):
    engine = ScriptedVLLM(development=True)
    backend = await connect(engine)
    for mode in ("abort", "keep", "wait"):
        await backend.pause(mode)
        assert await backend.is_paused()
        await backend.resume()
        assert not await backend.is_paused()
    assert engine.pauses == ["abort", "keep", "wait"]
    await backend.set_weights(7)
    assert (engine.weight_version, await backend.weight_version()) == ("7", 7)
    with pytest.raises(Unsupported, match="from a path"):
        await backend.set_weights(8, "/weights")


async def test_a_server_without_its_development_mode_says_how_to_get_it(connect):
    backend = await connect(ScriptedVLLM())
    for asked in (backend.pause("abort"), backend.resume()):
        with pytest.raises(Unsupported, match="VLLM_SERVER_DEV_MODE=1"):
            await asked
    await backend.set_weights(7)
    assert await backend.weight_version() is None
    assert not await backend.is_paused()


# ---- secrets


async def test_a_key_that_the_server_repeats_is_not_shown(connect, endpoint, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-very-secret")

    def error():
        return refusal(401, "no such key: sk-very-secret", "Unauthorized")

    with pytest.raises(UpstreamError, match=r"no such key: \*\*\*") as caught:
        await collect(await connect(ScriptedVLLM(error=error), endpoint=endpoint, api_key_env="SOME_KEY"))
    assert "very-secret" not in repr(caught.value)


# ---- check, and the name


async def test_check_says_what_the_server_can_do(connect):
    assert await (await connect(ScriptedVLLM([Choice([(7, -0.5)])]))).check() == {
        "engine": "vLLM 0.32.0",
        "model": "served",
        "max_model_len": 100,
        "endpoint": GENERATE,
        "echo": True,
        "logprobs": True,
        "logprobs_mode": "raw_logprobs",
    }


async def test_check_shows_what_is_missing(connect):
    checked = await (await connect(ScriptedVLLM([Choice([(7, None)])], scale_out=False, echo=False))).check()
    assert (checked["endpoint"], checked["echo"], checked["logprobs"]) == (COMPLETIONS, False, False)


def test_the_hook_answers_for_its_kind_alone():
    assert isinstance(create_backend("vllm", {"url": "http://x"}, "name"), VLLMBackend)
    assert create_backend("anyllm", {"url": "http://x"}, "name") is None


def test_vllm_itself_is_not_shadowed():
    spec = importlib.util.find_spec("vllm")
    assert spec is None or "rolltap" not in str(spec.origin)
