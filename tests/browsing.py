"""A real browser for tests, and servers whose stores begin with synthetic sessions: fixtures."""

import os
import shutil
from pathlib import Path

import pytest

import synthetic_sessions as synthetic
from rolltap.testing import MODEL, ScriptedTokenBackend

ROOT = Path(__file__).parents[1]
AXE = ROOT / ".venv-browser" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def needed(found, what):
    """Skip without it; in CI fail."""
    if found:
        return found
    message = f"{what} is missing: .ci/browser installs it"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
    return None


@pytest.fixture(scope="session")
def chromium():
    return needed(shutil.which("chromium") or shutil.which("google-chrome"), "a browser (chromium)")


@pytest.fixture(scope="session")
def axe():
    needed(AXE.exists(), str(AXE.relative_to(ROOT)))
    return AXE.read_text()


@pytest.fixture(scope="session")
def encode(rolltap_tokenizer):
    from transformers import AutoTokenizer  # noqa: PLC0415 - it takes seconds

    tokenizer = AutoTokenizer.from_pretrained(rolltap_tokenizer)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
async def open_page(chromium, rolltap_serve):
    """Opens pages of a viewer; at the end nothing may have been logged as an error in any of them.

    It takes the fixture of servers so that it ends before they do: a page whose server ends has errors to log.
    """
    from playwright.async_api import async_playwright  # noqa: PLC0415 - only where a browser is used

    errors = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=FLAGS)

        async def start(url, path="", *, theme="light", width=1360, height=850, expected="", **context):
            opened = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=theme, **context
            )
            page = await opened.new_page()
            page.set_default_timeout(20_000)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: _note(message, errors, expected))
            await page.goto(f"{url}/ui/{path}")
            return page

        yield start
        await browser.close()
    assert not errors


def _note(message, errors, expected):
    if message.type == "error" and not (expected and expected in message.text):
        errors.append(message.text)


@pytest.fixture
def serve_filled(rolltap_serve, rolltap_tokenizer):
    async def start(*writers, script=(), **server):
        return await rolltap_serve(
            ScriptedTokenBackend(rolltap_tokenizer, script),
            plugins=[synthetic.Filled(writers)],
            model={"tokenizer": rolltap_tokenizer},
            config={"store": {"kind": "filled"}, "server": {"max_sessions": 20_000, **server}},
        )

    return start


@pytest.fixture
async def branched(serve_filled, encode):
    """A server with one session of many kinds of nodes, and that session's id."""
    writer = synthetic.branched(1, encode, MODEL)
    return await serve_filled(writer), writer.uuid
