"""The SGLang backend against a scripted server: what is sent, what is read in each form of its streams, what is proved."""

import asyncio
import base64
import json
from contextlib import aclosing

import aiohttp
import msgspec
import pytest
from aiohttp import web
from transformers import AutoTokenizer

from rolltap import BadRequest, ConfigError, Sampling, TokenRequest, UpstreamError
from rolltap_plugins.sglang import Options, SGLangBackend, create_backend
from rolltap_plugins.sglang.parameters import PARAMETERS, applied, request_body
from rolltap_plugins.upstream.engine import Engine
from scripted_sglang import FORMS, HashedModel, ScriptedSGLang, frames

PROMPT = [1, 4, 1, 5]


@pytest.fixture
async def connect(aiohttp_server):
    """A function that starts a scripted server and a backend for it."""
    backends = []

    async def start(engine, **options):
        server = await aiohttp_server(engine.app())
        table = {"url": str(server.make_url("/")), "verify_share": 0.0, **options}
        backend = SGLangBackend(Options.read(table, "name"), "name")
        backends.append(backend)
        await backend.start()
        return backend

    yield start
    for backend in backends:
        await backend.close()


def asking(prompt=PROMPT, *, stream=True, request_id="", **sampling):
    return TokenRequest(
        prompt_ids=prompt, sampling=Sampling(**sampling), stream=stream, request_id=request_id
    )


async def collect(backend, **asked):
    return [delta async for delta in backend.generate(asking(**asked))]


def joined(deltas, index=0):
    mine = [delta for delta in deltas if delta.index == index]
    return [token for delta in mine for token in delta.token_ids], [
        value for delta in mine for value in delta.logprobs
    ]


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - of another server
            await asyncio.sleep(0.01)


STREAM = pytest.mark.parametrize("stream", [True, False])
FORM = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


class TestReplies:
    @FORM
    async def test_each_token_comes_once_in_every_form(self, connect, form):
        deltas = await collect(await connect(ScriptedSGLang(**form)), top_logprobs=2)
        assert [delta.token_ids for delta in deltas] == [[7], [8], [2]]
        assert [delta.logprobs for delta in deltas] == [[-0.5], [-0.25], [-1.5]]
        assert [list(delta.top_logprobs[0]) for delta in deltas] == [[7, 107], [8, 108], [2, 102]]
        assert [delta.finish_reason for delta in deltas] == [None, None, "stop"]
        assert deltas[-1].stop_reason == 2
        assert deltas[-1].cached_tokens == 3

    @FORM
    async def test_one_token_again_and_again_is_not_taken_for_the_whole(self, connect, form):
        script = [(7, -0.5), (7, -0.25), (7, -0.125), (7, -1.0)]
        deltas = await collect(await connect(ScriptedSGLang(script=script, **form)))
        assert joined(deltas) == ([7, 7, 7, 7], [-0.5, -0.25, -0.125, -1.0])

    async def test_a_whole_reply_is_the_same_as_its_stream(self, connect, rolltap_tokenizer):
        tokenizer = AutoTokenizer.from_pretrained(rolltap_tokenizer)
        engine = ScriptedSGLang(HashedModel(tokenizer, tokenizer.eos_token_id), weight_version="4")
        backend = await connect(engine)
        asked = {"n": 3, "max_tokens": 9, "seed": 1, "top_logprobs": 2}
        streamed, whole = [await collect(backend, **asked, stream=stream) for stream in (True, False)]
        assert len(whole) == 3 < len(streamed)
        for index in range(3):
            assert joined(whole, index) == joined(streamed, index)
            ends = [
                [d for d in each if d.index == index and d.finish_reason][-1] for each in (whole, streamed)
            ]
            assert ends[0].finish_reason == ends[1].finish_reason
            assert (
                ends[0].weight_versions == ends[1].weight_versions == [[0, len(joined(whole, index)[0]), 4]]
            )

    @STREAM
    async def test_a_missing_logprob_is_not_made_up(self, connect, stream):
        engine = ScriptedSGLang(script=[(7, -0.5), (8, None)])
        deltas = await collect(await connect(engine), stream=stream)
        assert [token for delta in deltas for token in delta.token_ids] == [7, 8]
        assert deltas[-1].logprobs is None

    async def test_logprobs_of_other_ids_are_none(self, connect):
        meta = {"completion_tokens": 1, "finish_reason": {"type": "length", "length": 1}}
        meta["output_token_logprobs"] = [[-0.5, 9, None]]
        engine = ScriptedSGLang(frames=list(frames({"output_ids": [7], "meta_info": meta})))
        (delta,) = await collect(await connect(engine))
        assert (delta.token_ids, delta.logprobs) == ([7], None)

    async def test_servers_that_say_the_ids_in_the_logprobs_alone(self, connect):
        meta = {"finish_reason": {"type": "length", "length": 2}}
        meta["output_token_logprobs"] = [[-0.5, 9, None], [-0.25, 3, None]]
        engine = ScriptedSGLang(whole=json.dumps({"text": "…", "meta_info": meta}).encode())
        (delta,) = await collect(await connect(engine), stream=False)
        assert joined([delta]) == ([9, 3], [-0.5, -0.25])

    @STREAM
    async def test_experts_are_bytes(self, connect, stream):
        deltas = await collect(
            await connect(ScriptedSGLang()), stream=stream, extra={"return_routed_experts": True}
        )
        assert deltas[-1].routed_experts == base64.b64decode("AAEC")

    async def test_masks_are_those_of_the_whole_choice(self, connect):
        def event(ids, masks, **more):
            return {
                "output_ids": ids,
                "meta_info": {
                    "completion_tokens": len(ids),
                    "output_token_sampling_mask": masks,
                    **more,
                },
            }

        end = {"finish_reason": {"type": "length", "length": 2}}
        engine = ScriptedSGLang(
            frames=list(frames(event([7], [[7, 8]]), event([7, 9], [[7, 8], [9]], **end)))
        )
        deltas = await collect(await connect(engine))
        assert msgspec.msgpack.decode(deltas[-1].sampling_mask) == [[7, 8], [9]]


class TestEnds:
    @STREAM
    @FORM
    @pytest.mark.parametrize("after", [0, 1, 2])
    async def test_an_engines_abort_comes_through(self, connect, form, stream, after):
        engine = ScriptedSGLang(aborts_at=after, **form)
        deltas = await collect(await connect(engine), stream=stream)
        assert deltas[-1].finish_reason == "abort"
        assert joined(deltas)[0] == [7, 8][:after]

    async def test_an_abort_that_repeats_the_last_id_adds_none(self, connect):
        """As SGLang does in incremental streams for what waits to go on."""

        def event(count, **more):
            logprobs = [[-0.5, 7, None], [-0.5, 8, None]][:count]
            meta = {"completion_tokens": count, "output_token_logprobs": logprobs, **more}
            return {"output_ids": [[7], [8]][count - 1], "meta_info": meta}

        aborted = event(2, finish_reason={"type": "abort", "message": "Abort in waiting queue"})
        engine = ScriptedSGLang(frames=list(frames(event(1), event(2), aborted)))
        assert joined(await collect(await connect(engine)))[0] == [7, 8]

    @STREAM
    async def test_an_abort_with_a_status_is_a_failure(self, connect, stream):
        finish = {"type": "abort", "message": "out of memory", "status_code": 500, "err_type": None}
        with pytest.raises(UpstreamError, match="out of memory") as caught:
            await collect(await connect(ScriptedSGLang(finish=finish)), stream=stream)
        assert caught.value.status == 500

    async def test_a_prompt_that_is_too_long(self, connect):
        with pytest.raises(UpstreamError, match="maximum context length") as caught:
            await collect(await connect(ScriptedSGLang(max_model_len=3)))
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")

    async def test_an_error_inside_the_stream(self, connect):
        error = {"message": "bad grammar", "type": "invalid_request_error", "code": 400, "retryable": False}
        with pytest.raises(UpstreamError, match="bad grammar") as caught:
            await collect(await connect(ScriptedSGLang(frames=list(frames({"error": error})))))
        assert caught.value.status == 400

    async def test_a_stream_that_ends_early(self, connect):
        event = {"output_ids": [7], "meta_info": {"completion_tokens": 1}}
        with pytest.raises(UpstreamError, match="ended before all of its choices did"):
            await collect(await connect(ScriptedSGLang(frames=list(frames(event)))))

    @pytest.mark.parametrize("leave", ["close", "cancel"])
    @STREAM
    async def test_a_client_that_leaves_ends_the_generation(self, connect, stream, leave):
        engine = ScriptedSGLang(script=[(7, -0.5)] * 5000, pause_s=0.01)
        backend = await connect(engine)

        async def read():
            async with aclosing(backend.generate(asking(stream=stream, request_id="r1"))) as deltas:
                async for _ in deltas:
                    if leave == "close":
                        break

        task = asyncio.create_task(read())
        await until(lambda: engine.runs)
        if leave == "cancel" or not stream:
            task.cancel()
        await asyncio.wait([task])
        await until(lambda: not engine.runs)
        (rid,) = [body["rid"] for name, body in engine.controls if name == "abort_request"]
        assert rid == engine.asked[0][0]["rid"]
        assert rid.startswith("r1-")

    async def test_what_ended_by_itself_is_not_aborted(self, connect):
        engine = ScriptedSGLang()
        backend = await connect(engine)
        await collect(backend)
        engine.error = lambda: web.Response(status=500)
        with pytest.raises(UpstreamError):
            await collect(backend)
        assert not engine.controls


SHAPES = [
    b"3", b"null", b'"x"', b'{"output_ids": ["7"]}', b'{"output_ids": [-1]}', b'{"output_ids": [4294967296]}',
    b'{"output_ids": [7], "meta_info": []}', b'{"output_ids": [7], "meta_info": {"completion_tokens": "1"}}',
    b'{"output_ids": [7], "meta_info": {"completion_tokens": 5}, "index": 3}',
    b'{"output_ids": [7], "meta_info": {"completion_tokens": 1, "finish_reason": "stop"}}',
    b'{"output_ids": [7], "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "eaten"}}}',
    b'{"output_ids": [7], "meta_info": {"completion_tokens": 1, "output_token_logprobs": [["x", 7]]}}',
    b'{"output_ids": [7], "meta_info": {"completion_tokens": 1, "weight_versions": {"a": 1}}}',
    b'{"meta_info": {"completion_tokens": 1}}', b"[{}", b"\xff", b"[" * 100_000,
]  # fmt: skip


class TestShapes:
    @STREAM
    @pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[:50])
    async def test_an_answer_of_another_shape_is_the_upstreams_fault(self, connect, shape, stream):
        engine = ScriptedSGLang(frames=[b"data: " + shape + b"\n\n"], whole=shape)
        with pytest.raises(UpstreamError) as caught:
            await collect(await connect(engine), stream=stream)
        assert caught.value.status is None

    async def test_counts_that_do_not_fit_the_ids(self, connect):
        first = {"output_ids": [7], "meta_info": {"completion_tokens": 1}}
        fewer = {"output_ids": [7], "meta_info": {"completion_tokens": 3}}
        with pytest.raises(UpstreamError, match="1 ids where 3 were generated, 1 known"):
            await collect(await connect(ScriptedSGLang(frames=list(frames(first, fewer)))))


class TestProof:
    async def test_a_whole_reply_echoes_its_prompt(self, connect):
        engine = ScriptedSGLang()
        (delta,) = await collect(await connect(engine), stream=False)
        assert (delta.prompt_token_ids, delta.prompt_proof) == (PROMPT, "echo")
        assert engine.asked[0][0]["logprob_start_len"] == -1

    async def test_a_stream_tells_how_long_it_was(self, connect):
        deltas = await collect(await connect(ScriptedSGLang()))
        assert [delta.num_prompt_tokens for delta in deltas] == [4, None, None]
        assert all(delta.prompt_token_ids is None for delta in deltas)

    @STREAM
    async def test_a_share_is_proved_by_its_logprobs(self, connect, stream):
        engine = ScriptedSGLang(echoes=False)
        backend = await connect(engine, verify_share=1.0)
        deltas = await collect(backend, stream=stream)
        assert (deltas[0].prompt_token_ids, deltas[0].prompt_proof) == (PROMPT, "logprobs")
        assert all(delta.prompt_token_ids is None for delta in deltas[1:])
        assert engine.asked[0][0]["logprob_start_len"] == 0

    @pytest.mark.parametrize(
        ("options", "stream", "proof"),
        [({}, False, "echo"), ({}, True, "length"), ({"verify_share": 1}, True, "logprobs")],
    )
    @pytest.mark.parametrize("drifts", [False, True])
    async def test_the_node_says_how_and_whether(
        self, aiohttp_server, rolltap_serve, rolltap_tokenizer, options, stream, proof, drifts
    ):
        engine = ScriptedSGLang(saw=(lambda ids: [0, *ids]) if drifts else list)
        upstream = await aiohttp_server(engine.app())
        backend = {"kind": "sglang", "url": str(upstream.make_url("/")), "verify_share": 0, **options}
        table = {"name": "m", "tokenizer": rolltap_tokenizer, "backends": [backend]}
        server = await rolltap_serve(config={"models": [table]})
        session = await server.session()
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        body["stream"] = stream
        async with server.http.post(f"/{session}/v1/chat/completions", json=body) as response:
            await response.read()
        (node,) = await server.nodes(session)
        assert node["metadata"]["prompt_proof"] == proof
        assert node["metadata"]["trainable"] is not drifts
        if drifts:
            assert "the engine saw" in node["metadata"]["untrainable_reason"]


class TestWeights:
    @STREAM
    async def test_versions_are_spans(self, connect, stream):
        engine = ScriptedSGLang(weight_version="v7")
        deltas = await collect(await connect(engine), stream=stream)
        assert [delta.weight_versions for delta in deltas][-1] == [[0, 3, "v7"]]

    async def test_a_change_is_placed_by_the_engine(self, connect):
        engine = ScriptedSGLang(weight_version="1", pause_s=0.02)
        backend = await connect(engine)
        async with aclosing(backend.generate(asking())) as deltas:
            seen = []
            async for delta in deltas:
                if not seen:
                    await backend.set_weights(2)
                seen.append(delta)
        assert seen[-1].weight_versions == [[0, 1, 1], [1, 3, 2]]
        assert seen[-1].finish_reason == "stop"

    @STREAM
    async def test_older_servers_tell_before_and_after(self, connect, stream):
        engine = ScriptedSGLang(weight_version="1", places_versions=False, older=True, pause_s=0.05)
        backend = await connect(engine)
        assert (await collect(backend, stream=stream))[-1].weight_versions == [[0, 3, 1]]
        task = asyncio.create_task(collect(backend, stream=stream))
        await until(lambda: engine.runs)
        engine.weight_version = "2"
        assert (await task)[-1].weight_versions == [[0, 3, [1, 2]]]

    async def test_weights_that_nobody_gave_a_version_have_none(self, connect):
        for places in (True, False):
            engine = ScriptedSGLang(places_versions=places)
            assert (await collect(await connect(engine)))[-1].weight_versions is None

    async def test_pauses_and_versions_reach_the_engine(self, connect):
        engine = ScriptedSGLang()
        backend = await connect(engine)
        for mode in ("abort", "keep", "wait"):
            await backend.pause(mode)
            assert await backend.is_paused()
            await backend.resume()
            assert not await backend.is_paused()
        modes = [body["mode"] for name, body in engine.controls if name == "pause_generation"]
        assert modes == ["abort", "in_place", "in_place"]
        await backend.set_weights(7)
        assert await backend.weight_version() == 7
        await backend.set_weights("late", "/weights")
        assert await backend.weight_version() == "late"
        assert engine.controls[-1] == (
            "update_weights_from_disk", {"model_path": "/weights", "weight_version": "late"}
        )  # fmt: skip
        with pytest.raises(UpstreamError, match="no such folder"):
            await backend.set_weights(8, "missing")

    @STREAM
    async def test_a_pause_ends_what_runs_or_keeps_it(self, connect, stream):
        engine = ScriptedSGLang(pause_s=0.05)
        backend = await connect(engine)
        for mode, reason in (("abort", "abort"), ("keep", "stop"), ("wait", "stop")):
            task = asyncio.create_task(collect(backend, stream=stream))
            await until(lambda: engine.runs and engine.runs[0].ids)
            await backend.pause(mode)
            await asyncio.sleep(0.2)
            assert task.done() == (mode != "keep")
            await backend.resume()
            assert (await task)[-1].finish_reason == reason

    async def test_the_admin_key_is_for_the_engines_control_alone(self, connect, monkeypatch):
        monkeypatch.setenv("A_KEY", "for-clients")
        monkeypatch.setenv("ADMIN_KEY", "for-admins")
        engine = ScriptedSGLang()
        backend = await connect(engine, api_key_env="A_KEY", admin_key_env="ADMIN_KEY")
        await collect(backend)
        assert engine.asked[0][1]["Authorization"] == "Bearer for-clients"
        assert backend._admin._headers["Authorization"] == "Bearer for-admins"


class TestRequests:
    def body(self, *, stream=True, verify=False, max_model_len=100, **sampling):
        return request_body(asking(stream=stream, **sampling), max_model_len, rid="r", verify=verify)

    def test_every_named_parameter_by_sglangs_name(self):
        body = self.body(
            max_tokens=5, min_tokens=2, seed=3, temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, ignore_eos=True,
            stop=["END"], stop_token_ids=[2], presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.1,
            logit_bias={7: 1.5}, top_logprobs=4,
        )  # fmt: skip
        assert body["sampling_params"] == {
            "max_new_tokens": 5, "min_new_tokens": 2, "sampling_seed": 3, "temperature": 0.5, "top_p": 0.9, "top_k": -1,
            "min_p": 0.1, "ignore_eos": True, "stop": ("END",), "stop_token_ids": (2,), "presence_penalty": 0.1,
            "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": {"7": 1.5}, "n": 1,
        }  # fmt: skip
        assert (body["top_logprobs_num"], body["return_logprob"], body["input_ids"]) == (4, True, PROMPT)

    def test_what_is_missing_is_said_so_that_no_server_prefers_another(self):
        assert applied(self.body()) == {
            "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "repetition_penalty": 1.0, "max_tokens": 96,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("asked", "limit", "sent"),
        [(None, 100, 96), (10, 100, 10), (500, 100, 96), (None, 3, 1), (10, None, 10)],
    )
    def test_max_tokens_fills_the_context_and_is_cut_to_it(self, asked, limit, sent):
        assert self.body(max_tokens=asked, max_model_len=limit)["sampling_params"]["max_new_tokens"] == sent

    def test_without_a_known_context_max_tokens_is_needed(self):
        with pytest.raises(BadRequest, match="give max_tokens"):
            self.body(max_model_len=None)

    @pytest.mark.parametrize(
        ("response_format", "sent"),
        [
            (None, {}),
            ({"type": "text"}, {}),
            ({"type": "json_object"}, {"json_schema": '{"type": "object"}'}),
            ({"type": "json_schema", "json_schema": {"schema": {"a": 1}}}, {"json_schema": '{"a":1}'}),
            ({"type": "structural_tag", "x": 1}, {"structural_tag": '{"type":"structural_tag","x":1}'}),
        ],
    )
    def test_structured_outputs(self, response_format, sent):
        params = self.body(response_format=response_format)["sampling_params"]
        grammars = ("json_schema", "regex", "ebnf", "structural_tag")
        assert {name: params[name] for name in grammars if name in params} == sent
        assert self.body(extra={"regex": "a+"})["sampling_params"]["regex"] == "a+"
        assert self.body(extra={"ebnf": "root ::= x"})["sampling_params"]["ebnf"] == "root ::= x"

    @pytest.mark.parametrize(
        ("sampling", "param"),
        [
            ({"response_format": {"type": "yaml"}}, "response_format"),
            ({"response_format": {"type": "json_schema"}}, "response_format"),
            ({"extra": {"regex": "a", "ebnf": "b"}}, "ebnf"),
            ({"extra": {"guided_json": {}}}, "guided_json"),
            ({"extra": {"input_ids": [1]}}, "input_ids"),
            ({"extra": {"return_logprob": False}}, "return_logprob"),
        ],
    )
    def test_what_can_t_be_done_is_refused(self, sampling, param):
        with pytest.raises(BadRequest) as caught:
            self.body(**sampling)
        assert caught.value.info.param == param

    def test_extras_go_where_the_engine_has_them(self):
        inside = {"regex", "no_stop_trim", "custom_params"}
        beside = {"lora_path", "return_routed_experts", "extra_key", "priority"}
        assert inside | beside <= PARAMETERS
        body = self.body(extra={name: f"<{name}>" for name in inside | beside})
        assert all(body["sampling_params"][name] == f"<{name}>" for name in inside)
        assert all(body[name] == f"<{name}>" for name in beside)

    def test_scheduling(self):
        request = TokenRequest(
            prompt_ids=PROMPT, sampling=Sampling(extra={"extra_key": "mine"}), priority=3, cache_salt="7"
        )
        body = request_body(request, 100, rid="r", verify=False)
        assert (body["priority"], body["extra_key"], body["rid"]) == (3, "mine:7", "r")
        assert self.body().keys().isdisjoint({"priority", "extra_key"})
        assert "rid" not in self.body(n=2)  # SGLang names each choice itself

    @STREAM
    def test_the_prompt_is_not_repeated_in_every_event(self, stream):
        assert self.body(stream=stream)["return_prompt_token_ids"] is not stream


class TestServer:
    @pytest.mark.parametrize("older", [False, True])
    async def test_check_says_what_the_server_can_do(self, connect, older):
        engine = ScriptedSGLang(older=older, echoes=not older)
        assert await (await connect(engine, verify_share=0.25)).check() == {
            "engine": "SGLang 0.5.23",
            "model": "served",
            "max_model_len": 2000,
            "endpoint": "/generate",
            "echo": True,
            "prompt_proof": "logprobs",
            "verify_share": 0.25,
            "logprobs": True,
            "logprobs_mode": "processed_logprobs",
        }

    async def test_health_is_that_its_engine_generates(self, connect):
        engine = ScriptedSGLang()
        backend = await connect(engine)
        assert await backend.healthy()
        engine.healthy = False
        assert not await backend.healthy()

    async def test_check_shows_what_is_missing(self, connect):
        engine = ScriptedSGLang(script=[(7, None)], saw=lambda ids: [9, *ids])
        checked = await (await connect(engine)).check()
        assert (checked["echo"], checked["prompt_proof"], checked["logprobs"]) == (False, "", False)

    async def test_start_needs_no_server_and_requests_do(self, aiohttp_server, unused_tcp_port):
        backend = SGLangBackend(Options(url=f"http://127.0.0.1:{unused_tcp_port}"), "name")
        await backend.start()
        with pytest.raises(aiohttp.ClientConnectorError):
            await collect(backend)
        await aiohttp_server(ScriptedSGLang().app(), port=unused_tcp_port)
        assert joined(await collect(backend))[0] == [7, 8, 2]
        await backend.close()

    @pytest.mark.parametrize(
        ("table", "said"),
        [
            ({}, "give either 'url'"),
            ({"url": "http://h", "verify_share": 2}, "'verify_share' is 2"),
            ({"url": "http://h", "admin_key_env": "NOT_SET"}, "'admin_key_env' names 'NOT_SET'"),
            ({"url": "http://h", "launch_args": ["--x"]}, "only together with 'launch'"),
        ],
    )
    def test_wrong_options_say_what_and_how(self, table, said):
        with pytest.raises(ConfigError, match=said) as caught:
            create_backend("sglang", table, "m")
        assert "model 'm', backend of kind 'sglang'" in str(caught.value)
        assert create_backend("vllm", table, "m") is None

    async def test_it_is_launched_by_its_own_command_with_raw_logprobs(self, tmp_path):
        package = tmp_path / "sglang"
        package.mkdir()
        (package / "__init__.py").touch()
        table = {
            "launch": "some/model",
            "launch_args": ["--tp", "2"],
            "launch_env": {"PYTHONPATH": str(tmp_path)},
        }
        backend = create_backend("sglang", table, "named")
        assert (backend.tokenizer, backend._options.served_logprobs) == ("some/model", "raw_logprobs")
        engine = backend._engine
        assert isinstance(engine, Engine)
        command = await engine._command()
        assert command[1:] == [
            "-m", "sglang.launch_server", "--model-path", "some/model", "--served-model-name", "named",
            "--host", "127.0.0.1", "--port", backend.url.rpartition(":")[2], "--tp", "2",
        ]  # fmt: skip
        assert engine._environment()["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "1"
        processed = {**table["launch_env"], "SGLANG_RETURN_ORIGINAL_LOGPROB": "0"}
        other = create_backend("sglang", {**table, "launch_env": processed}, "named")
        assert other._options.served_logprobs == "processed_logprobs"
