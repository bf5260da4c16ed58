"""`rolltap tail`."""

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from rolltap.cli.remote import Remote, connected, one_line, server_options, text_of, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


@click.command()
@server_options
def tail(url: str, api_key: str | None) -> None:
    """Show sessions and turns as they happen, a line each, until Ctrl-C."""
    from rich.console import Console  # noqa: PLC0415

    try:
        asyncio.run(_follow(Console(highlight=False), url, api_key))
    except KeyboardInterrupt:
        click.echo()


async def _follow(console: "Console", url: str, api_key: str | None) -> None:
    async with connected(url, api_key) as remote:
        groups = await _groups(remote)
        async for event in remote.events():
            if event:
                line = told(event, groups)
                if line is not None:
                    console.print(line, soft_wrap=True)
            else:
                console.print(f"Following {visible(url)}; Ctrl-C ends.", style="dim")
    raise click.ClickException(
        f"{url} has ended the stream: the server was stopped, or this reader was too slow"
    )


async def _groups(remote: Remote) -> dict[str, str]:
    """The group of each session that there is."""
    found: dict[str, str] = {}
    page = await remote.get("/sessions", limit="1000")
    while True:
        found.update((session["uuid"], session["group"]) for session in page["sessions"])
        if not page["next"]:
            return found
        page = await remote.get("/sessions", limit="1000", after=page["next"])


def told(event: dict[str, Any], groups: dict[str, str]) -> "Text | None":
    """An event as a line; None for one that says nothing to a reader. `groups` learns of new sessions."""
    from rich.text import Text  # noqa: PLC0415

    session = event["session"]
    if event["type"] == "created":
        groups[session] = event["info"].get("group", "")
    words = _words(event)
    if words is None:
        return None
    line = Text(f"{datetime.now().astimezone():%H:%M:%S}  ", style="dim")
    line.append(f"{session[:8]}  ", style="cyan")
    if groups.get(session):
        line.append(f"{visible(groups[session])}  ", style="dim")
    return line.append_text(words)


def _words(event: dict[str, Any]) -> "Text | None":
    from rich.text import Text  # noqa: PLC0415

    found: Text | None = None
    match event["type"]:
        case "created":
            found = Text(f"new session of {visible(event['info']['model_name'])}", "bold")
        case "call":
            found = _call(event)
        case "failed":
            found = Text(f"a call failed: {one_line(event.get('reason', ''))}", "red")
        case "delivery" if event["delivery"] == "aborted":
            found = Text("the client left before it had everything", "yellow")
        case "delivery":
            found = Text("the client has it now")
        case "reward":
            found = Text(f"{visible(event.get('name', 'reward'))} {event['value']:g}", "bold green")
        case "sealed" | "deleted" as state:
            found = Text(state, "bold")
    return found


def _call(event: dict[str, Any]) -> "Text":
    from rich.text import Text  # noqa: PLC0415

    line = Text()
    for node in event["nodes"]:
        message = node["message"] or {}
        for call in message.get("tool_calls", ()):
            line.append(f"{visible(call['function']['name'])}() ", style="magenta")
        said = text_of(message)
        if said:
            line.append(f"{one_line(said, 90)} ")
        line.append(f"{node['num_generated']} tok", style="dim")
        if not node["trainable"]:
            line.append(f"  untrainable: {one_line(node['untrainable_reason'])}", style="yellow")
        line.append("  ")
    times = event["times"]
    return line.append(f"{times['ended'] - times['received']:.2f} s", style="dim")
