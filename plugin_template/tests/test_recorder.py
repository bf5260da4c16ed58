import json
from pathlib import Path

import pytest
from rolltap.testing import ScriptedTokenBackend, Serve

BODY = {"messages": [{"role": "user", "content": "Hello"}]}


async def test_each_node_is_a_line(
    rolltap_serve: Serve, rolltap_tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nodes.jsonl"
    monkeypatch.setenv("ACME_RECORDS", str(file))
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, ["Hi.", "Hi again."]))
    session = await server.session(track_tree=True)
    for _ in range(2):
        status, answer = await server.post(f"/{session}/v1/chat/completions", BODY)
        assert status == 200, answer
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    nodes = await server.nodes(session)
    assert [(line["session"], line["tokens"]) for line in lines] == [
        (session, node["tokens"]) for node in nodes
    ]
