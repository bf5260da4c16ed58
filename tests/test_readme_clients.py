"""The README's table of clients: the lines for the SDKs do what they say. Those for agents are in tests/live."""

import asyncio

import pytest
from anthropic import Anthropic
from google import genai
from openai import OpenAI

from readme_settings import setting
from rolltap.testing import MODEL, ScriptedTokenBackend


@pytest.mark.parametrize(
    "client",
    ["openai package", "anthropic package", "google-genai package", "anything with a fixed path"],
)
async def test_setting(rolltap_serve, rolltap_tokenizer, client):
    server = await rolltap_serve(ScriptedTokenBackend(rolltap_tokenizer, ["Hi."]))
    session = await server.session()
    line = setting(client, server.url, session, MODEL)

    def ask():
        with eval(line, {"OpenAI": OpenAI, "Anthropic": Anthropic, "genai": genai}) as sdk:
            if isinstance(sdk, genai.Client):
                return sdk.models.generate_content(model=MODEL, contents="a").text
            messages = [{"role": "user", "content": "a"}]
            if isinstance(sdk, Anthropic):
                return sdk.messages.create(model=MODEL, messages=messages, max_tokens=9).content[0].text
            return sdk.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content

    assert await asyncio.to_thread(ask) == "Hi."
    assert len(await server.nodes(session)) == 1
