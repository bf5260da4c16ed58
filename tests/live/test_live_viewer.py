"""The viewer in a real browser: on the embedded model while an agent runs, and on sessions of every kind."""

import asyncio
import re
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import openai
import pytest
from playwright.async_api import expect

import synthetic_sessions as synthetic
from rolltap.testing import MODEL
from served import served

pytestmark = pytest.mark.live

COUNT = 10_000
LEAST_FRAMES = 30

EMBEDDED = """
[[models]]
name = "smollm2-135m"
backends = [{ kind = "local" }]
"""


@asynccontextmanager
async def embedded(folder):
    """The embedded model, served by the command; an agent's client for each session."""
    async with served(EMBEDDED, folder, patience_s=300) as server, asyncio.timeout(300):
        yield server


async def new_session(server, **settings):
    async with server.http.post("/sessions/create", json=settings) as response:
        return (await response.json())["uuid"]


async def converse(server, session, questions):
    """An agent that asks one thing after the other."""
    messages = []
    async with openai.AsyncOpenAI(base_url=f"{server.url}/{session}/v1", api_key="unused") as client:
        for question in questions:
            messages.append({"role": "user", "content": question})
            reply = await client.chat.completions.create(
                model="smollm2-135m", messages=messages, temperature=0, max_tokens=24
            )
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return messages


async def test_from_the_list_to_a_token_while_an_agent_runs(open_page, tmp_path):
    async with embedded(tmp_path) as server:
        page = await open_page(server.url)
        await expect(page.get_by_text("No sessions yet")).to_be_visible()

        session = await new_session(server, group="capitals")
        link = page.get_by_role("link", name=session[:8])
        await expect(link).to_be_visible()

        await link.click()
        await expect(page.get_by_text("No calls yet")).to_be_visible()
        messages = await converse(server, session, ["What is the capital of France?", "And of Italy?"])
        rows = page.locator(".forest .call")
        await expect(rows).to_have_count(2)
        await expect(page.locator(".message")).to_have_count(4)
        assert messages[3]["content"] in await page.locator(".message.answer").inner_text()

        await page.get_by_role("link", name="Tokens").click()
        (node,) = await server.nodes(session)
        last = len(node["tokens"]) - 1
        await page.get_by_label("Go to a position").fill(str(last))
        await page.get_by_role("button", name="Go", exact=True).click()
        inspector = page.locator(".inspector")
        await expect(inspector).to_contain_text(str(node["tokens"][last]))
        shown = (await inspector.inner_text()).replace("\u2212", "-")
        assert f"{node['logprobs'][last]:.4f}" in shown
        assert "trained on" in shown
        text = "".join(await page.locator(".t").all_text_contents()).replace("↵", "")
        assert node["full_text"].endswith(text[-40:])

        await page.locator(f'.t[data-at="{last - 3}"]').hover()
        await expect(inspector).to_contain_text(f"Position\n{last - 3}", use_inner_text=True)
        await page.close()  # before the server ends


async def test_the_copied_request_is_answered_as_the_first_one_was(open_page, tmp_path):
    async with embedded(tmp_path) as server:
        session = await new_session(server)
        messages = await converse(server, session, ["What is the capital of France?"])
        (node,) = await server.nodes(session)
        page = await open_page(
            server.url,
            f"#/s/{session}/{node['metadata']['node_id']}",
            permissions=["clipboard-read", "clipboard-write"],
        )
        for button, command in (("Copy curl", ["bash", "-c"]), ("Copy Python", [sys.executable, "-c"])):
            await page.get_by_role("button", name=button).click()
            await expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
            copied = await page.evaluate("navigator.clipboard.readText()")
            done = await asyncio.to_thread(
                subprocess.run, [*command, copied], capture_output=True, text=True, timeout=120, check=False
            )
            assert messages[1]["content"] in done.stdout, done.stderr
        await page.get_by_role("button", name="Copy ids").click()
        await expect(page.get_by_role("status").filter(has_text="ids")).to_be_visible()
        assert await page.evaluate("navigator.clipboard.readText()") == str(node["tokens"]).replace(" ", "")
        await page.close()  # before the server ends


async def test_ten_thousand_sessions_are_searched_sorted_and_scrolled_at_once(
    open_page, serve_filled, encode
):
    server = await serve_filled(*synthetic.many(encode, MODEL, COUNT))
    page = await open_page(server.url)
    table = page.get_by_role("table", name="Sessions")
    await expect(table).to_have_attribute("aria-rowcount", str(COUNT + 1))
    assert await page.locator(".rows .row").count() < 80

    await page.keyboard.press("/")
    start = time.monotonic()
    await page.keyboard.type("fix-parser", delay=10)
    await expect(page.locator(".rows .row .group").first).to_contain_text("fix-parser")
    await expect(table).not_to_have_attribute("aria-rowcount", str(COUNT + 1))
    assert time.monotonic() - start < 2
    await page.get_by_role("button", name="Reward", exact=True).click()
    await expect(page.get_by_role("columnheader", name="Reward")).to_have_attribute("aria-sort", "descending")
    await expect(page.locator(".rows .row").first).to_contain_text(re.compile(r"0\.9\d\d|1"))

    await page.get_by_role("searchbox").fill("")
    await expect(table).to_have_attribute("aria-rowcount", str(COUNT + 1))
    await page.get_by_role("button", name="Session", exact=True).click()
    frames = await frames_a_second(page, ".rows", 200)
    assert frames >= LEAST_FRAMES
    await page.evaluate("document.querySelector('.rows').scrollTop = 1e9")
    await expect(page.locator(f'.rows .row[data-at="{COUNT - 1}"] a')).to_be_visible()

    await page.evaluate("document.querySelector('.rows').scrollTop = 0")
    await expect(page.locator('.rows .row[data-at="0"] a')).to_be_visible()
    await page.keyboard.press("Escape")
    await page.locator("main").focus()
    for key in ("j", "ArrowDown", "k"):
        await page.keyboard.press(key)
    focused = await page.evaluate("document.activeElement.getAttribute('href')")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(re.escape(focused)))


async def frames_a_second(page, selector, step, seconds=3):
    """Scroll by so many pixels a frame; how many frames there were."""
    return await page.evaluate(
        """async ([selector, step, seconds]) => {
          const box = document.querySelector(selector);
          const end = performance.now() + seconds * 1000;
          let frames = 0;
          while (performance.now() < end) {
            await new Promise(requestAnimationFrame);
            box.scrollTop += step;
            frames += 1;
          }
          return frames / seconds;
        }""",
        [selector, step, seconds],
    )


async def test_a_hundred_thousand_tokens_scroll_smoothly(open_page, serve_filled, encode):
    writer = synthetic.long(1, encode, MODEL, tokens=100_000)
    server = await serve_filled(writer)
    page = await open_page(server.url, f"#/s/{writer.uuid}/call-1.0")
    await page.get_by_role("button", name=re.compile("^User")).click()
    await expect(page.locator(".t").first).to_be_visible()
    assert await frames_a_second(page, "token-stream", 60, seconds=5) >= LEAST_FRAMES
    assert await page.locator(".t").count() < 10_000

    (node,) = await server.nodes(writer.uuid)
    for place in (73_210, 99_000, 12):
        await page.get_by_label("Go to a position").fill(str(place))
        await page.get_by_role("button", name="Go", exact=True).click()
        token = page.locator(f'.t.here[data-at="{place}"]')
        await expect(token).to_be_in_viewport()
        await expect(page.locator(".inspector")).to_contain_text(
            f"Id\n{node['tokens'][place]}", use_inner_text=True
        )


async def test_a_session_shows_its_branches_times_and_plots(open_page, branched):
    server, session = branched
    page = await open_page(server.url, f"#/s/{session}")
    rows = page.locator(".forest .call")
    await expect(rows).to_have_count(14)
    await expect(page.locator(".lanes circle")).to_have_count(14)
    await expect(page.locator(".lanes path")).to_have_count(12)
    await expect(rows.nth(9)).to_contain_text("messages[9].content differs")
    await expect(rows.nth(12)).to_contain_text("untrainable")

    await page.get_by_role("tab", name="Timeline").click()
    await expect(page.locator(".timeline .lane")).to_have_count(13)
    await page.keyboard.press("3")
    await expect(page.get_by_role("img", name=re.compile("Tokens"))).to_be_visible()
    await expect(page.get_by_role("img", name=re.compile("Latency"))).to_be_visible()
    await page.keyboard.press("1")
    await page.locator("main").focus()
    await page.keyboard.press("k")
    await expect(rows.nth(12)).to_have_attribute("aria-current", "true")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Not to be trained on")).to_be_visible()


async def test_the_keyboard_goes_from_token_to_token(open_page, branched):
    server, session = branched
    page = await open_page(server.url, f"#/s/{session}/call-9.0")
    await expect(page.locator(".t").first).to_be_visible()
    await page.locator("token-stream").focus()
    first = await cursor(page, "ArrowRight")
    assert await cursor(page, "ArrowRight") == first + 1
    assert await cursor(page, "ArrowLeft") == first
    assert await cursor(page, "]") > first + 1
    await cursor(page, "n")
    await page.keyboard.press("m")
    await expect(page.locator("token-stream")).to_have_attribute("mode", "logprob")
    assert "p4" in await page.locator(".t.here").get_attribute("class")
    await page.keyboard.press("u")
    await expect(page).to_have_url(re.compile(f"#/s/{session}$"))


async def cursor(page, key):
    """Press a key; the position of the token that the cursor is on then."""
    before = await page.evaluate("document.querySelector('token-stream').cursor")
    await page.keyboard.press(key)
    await page.wait_for_function(
        """(before) => { const found = document.querySelector('token-stream').cursor;
        return found !== before && document.querySelector('.t.here')?.dataset.at == found; }""",
        arg=before,
    )
    return await page.evaluate("document.querySelector('token-stream').cursor")


async def test_two_nodes_are_compared(open_page, branched):
    server, session = branched
    page = await open_page(server.url, f"#/s/{session}")
    rows = page.locator(".forest .call")
    await rows.nth(9).click()
    await page.get_by_role("button", name="Compare", exact=True).click()
    await rows.nth(8).click()
    await page.get_by_role("button", name="Compare with the marked").click()
    await expect(page.get_by_text("They part at messages[9], in content.")).to_be_visible()
    await expect(page.locator(".diff mark").first).to_have_text("ERROR: no such file")
    await expect(page.get_by_text("The same tools were offered.")).to_be_visible()
    tokens = {node["metadata"]["node_id"]: node["tokens"] for node in await server.nodes(session, mask="all")}
    branch, beside = tokens["call-10.0"], tokens["call-13.0"]
    parting = next(at for at, (one, other) in enumerate(zip(branch, beside, strict=False)) if one != other)
    assert 1000 < parting < len(branch)
    await expect(page.get_by_text(f"They are the same up to position {parting:,}.")).to_be_visible()


async def test_what_is_recorded_appears_while_it_happens(open_page, serve_filled, openai_client):
    server = await serve_filled(script=[f"Answer {number}." for number in range(3)])
    page = await open_page(server.url, "#/live")
    await expect(page.get_by_text("Nothing yet")).to_be_visible()
    await expect(page.get_by_text("1 of 1 backends healthy")).to_be_visible()
    session = await server.session(group="colours")
    client = openai_client(server, session)
    for number in range(3):
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": str(number)}])
        await expect(page.locator(".feed li").first).to_contain_text(f"Answer {number}.")
    await page.get_by_role("button", name="Hold").click()
    await server.post(f"/{session}/v1/chat/completions", {"model": MODEL, "messages": []})
    await expect(page.locator(".feed li")).to_have_count(4)
    await page.get_by_role("link", name="Sessions", exact=True).click()
    await expect(page.locator(".rows .row").first).to_contain_text("colours")
