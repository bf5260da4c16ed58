"""The viewer in a real browser, for everybody and everything: hostile texts, strangers, narrow windows, screen readers."""

import asyncio
import re

import pytest
from playwright.async_api import expect

import synthetic_sessions as synthetic
from rolltap.testing import MODEL

pytestmark = pytest.mark.live


async def test_hostile_texts_stay_texts(open_page, serve_filled, encode):
    writer = synthetic.hostile(1, encode, MODEL)
    server = await serve_filled(writer)
    page = await open_page(server.url)
    await expect(page.locator(".rows .group")).to_contain_text(
        '<b onmouseover="window.hacked=true">group</b>'
    )
    await page.get_by_role("link", name=writer.uuid[:8]).click()
    await expect(page.locator(".forest .call")).to_have_count(5)
    await expect(page.get_by_text("Show 50,000 more of 1,000,000 characters")).to_be_visible()
    await page.get_by_text("Show 50,000 more of 1,000,000 characters").click()
    for tab in ("Timeline", "Plots", "Settings", "Conversation"):
        await page.get_by_role("tab", name=tab).click()
    text = await page.locator(".conversation").inner_text()
    assert "<script>window.hacked = true</script>" in text
    assert "⟦ESC⟧[31mred" in text
    assert "⟦RLO⟧gnp.exe" in text
    assert not re.search("[\x00\x07\x08\x1b\u202e]", await page.content())
    for node in ("call-1.0", "call-3.0", "call-5.0"):
        await page.goto(f"{server.url}/ui/#/s/{writer.uuid}/{node}")
        await expect(page.locator(".t").first).to_be_visible()
        for tab in ("Parsed and raw", "Logprobs", "Parameters", "Tokens"):
            await page.get_by_role("tab", name=tab).click()
    await page.goto(f"{server.url}/ui/#/compare/{writer.uuid}/call-1.0/{writer.uuid}/call-2.0")
    await expect(page.get_by_text("A ends before messages[2].")).to_be_visible()
    assert await page.evaluate("window.hacked") is None
    assert await page.locator("main script, main img, main b[onmouseover]").count() == 0


async def test_the_page_asks_for_the_key_once_and_forgets_it_with_the_tab(open_page, serve_filled):
    server = await serve_filled(api_keys=["secret"])
    page = await open_page(server.url, expected="401")
    dialog = page.get_by_role("dialog", name="This server needs a key")
    await expect(dialog).to_be_visible()
    for key, answer in (("wrong", "The server does not know that key."), ("secret", "")):
        await dialog.get_by_label("API key").fill(key)
        await dialog.get_by_role("button").click()
        if answer:
            await expect(dialog.get_by_text(answer)).to_be_visible()
    await expect(page.get_by_text("No sessions yet")).to_be_visible()
    await expect(page.get_by_text("1 of 1 backends healthy")).to_be_visible()
    await page.reload()
    await expect(page.get_by_text("No sessions yet")).to_be_visible()
    assert await page.evaluate("localStorage.length") == 0
    other = await open_page(server.url, expected="401")
    await expect(other.get_by_role("dialog", name="This server needs a key")).to_be_visible()


async def test_what_is_missing_or_lost_is_said_in_words(open_page, branched):
    server, session = branched
    page = await open_page(server.url, "#/s/none", expected="404")
    await expect(page.get_by_role("alert")).to_contain_text("session 'none' is unknown")
    await page.goto(f"{server.url}/ui/#/s/{session}/none")
    await expect(page.get_by_role("alert")).to_contain_text("has no node 'none'")
    await page.goto(f"{server.url}/ui/#/")
    await page.get_by_role("searchbox").fill("nothing like it")
    await expect(page.get_by_text("No session matches")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_nothing_keeps_anybody_from_using_it(open_page, branched, axe, theme):
    server, session = branched
    pages = {
        "": "",
        "#/live": "",
        f"#/s/{session}": "Conversation Timeline Plots Settings",
        f"#/s/{session}/call-13.0": "Tokens|Parsed and raw|Logprobs|Parameters",
        f"#/compare/{session}/call-10.0/{session}/call-9.0": "",
    }
    found = []
    for path, tabs in pages.items():
        page = await open_page(server.url, path, theme=theme)
        await expect(page.locator("h1")).to_be_visible()
        await page.evaluate(axe)
        for tab in tabs.split("|" if "|" in tabs else None) or [""]:
            if tab:
                await page.get_by_role("tab", name=tab).click()
            await asyncio.sleep(0.4)  # until plots and tokens are drawn
            report = await page.evaluate("axe.run()")
            found += [
                (path, tab, each["id"], each["nodes"][0]["html"][:200])
                for each in report["violations"]
                if each["impact"] in {"serious", "critical"}
            ]
        await page.context.close()
    assert not found


@pytest.mark.parametrize("path", ["", "#/live", "#/s/{session}", "#/s/{session}/call-9.0"])
async def test_a_narrow_window_needs_no_sideways_scrolling(open_page, branched, path):
    server, session = branched
    page = await open_page(server.url, path.format(session=session), width=360, height=740)
    await expect(page.locator("h1")).to_be_visible()
    await asyncio.sleep(0.5)
    assert await page.evaluate("document.querySelector('#app').scrollWidth") <= 360


async def test_the_theme_is_switched_and_kept(open_page, branched):
    server, _ = branched
    page = await open_page(server.url, theme="light")
    await expect(page.locator("h1")).to_be_visible()
    background = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(background)
    await page.keyboard.press("t")
    dark = await page.evaluate(background)
    assert dark != light
    await page.reload()
    assert await page.evaluate(background) == dark
