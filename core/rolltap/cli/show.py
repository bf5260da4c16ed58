"""`rolltap show`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rolltap.cli.remote import connected, one_line, server_options, text_of, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SHOWN = 1500
"""Characters of a text that are shown without --full."""

_COLOURS = {"system": "blue", "developer": "blue", "user": "green", "assistant": "magenta", "tool": "yellow"}


@click.command()
@click.argument("session")
@click.option("--node", help="Only the sequence that ends in this node.")
@click.option("--full", is_flag=True, help="Show every text to its end.")
@server_options
def show(session: str, node: str | None, *, full: bool, url: str, api_key: str | None) -> None:
    """Show one session: its sequences, why they branched, what was said in them.

    What a sequence has in common with the one before is not said again.
    """
    from rich.console import Console  # noqa: PLC0415

    asyncio.run(_show(Console(highlight=False), session, node, full=full, url=url, api_key=api_key))


async def _show(
    console: "Console", session: str, wanted: str | None, *, full: bool, url: str, api_key: str | None
) -> None:
    async with connected(url, api_key) as remote:
        info = await remote.get(f"/{session}")
        nodes = (await remote.get(f"/{session}/nodes", messages="true"))["nodes"]
    if wanted is not None:
        names = [node["metadata"]["node_id"] for node in nodes]
        nodes = [node for node in nodes if node["metadata"]["node_id"] == wanted]
        if not nodes:
            raise click.ClickException(
                f"session {session} has no sequence that ends in node {wanted!r}; it has: {', '.join(names)}"
            )
    console.print(_facts(info), soft_wrap=True)
    if not nodes:
        console.print("No calls were recorded yet.", style="dim")
        return
    console.print(_overview(nodes))
    before: Sequence[Mapping[str, Any]] = ()
    for node in nodes:
        _print_sequence(console, node, before, full=full)
        before = node["messages"]


def _facts(info: Mapping[str, Any]) -> str:
    named = {
        "group": info.get("group"),
        "model": info["model_name"],
        "calls": info.get("num_calls"),
        "generated": f"{info.get('num_tokens', 0):,} tokens",
        "reward": info.get("reward"),
        "labels": ", ".join(f"{name}={value}" for name, value in (info.get("labels") or {}).items()),
    }
    facts = [f"[dim]{name}[/] {_plain(value)}" for name, value in named.items() if value not in {None, ""}]
    return f"[bold]{_plain(info['uuid'])}[/]  {_plain(info.get('state', ''))}\n" + "   ".join(facts) + "\n"


def _plain(value: object) -> str:
    from rich.markup import escape  # noqa: PLC0415

    return escape(visible(str(value)))


def _overview(nodes: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("node", "lineage", "tokens", "trained on", "ended by", "reward", "branched because"):
        table.add_column(name, justify="right" if name in {"tokens", "trained on", "reward"} else "left")
    for node in nodes:
        known = node["metadata"]
        reward = known.get("reward")
        table.add_row(
            _plain(known["node_id"]),
            _plain(known.get("lineage", "")),
            f"{len(node['tokens']):,}",
            f"{sum(mask != -100 for mask in node['masked_tokens']):,}",
            _plain(known.get("finish_reason") or ""),
            "" if reward is None else f"{reward:g}",
            _plain(known.get("branch_reason") or ""),
        )
    return table


def _print_sequence(
    console: "Console", node: Mapping[str, Any], before: Sequence[Mapping[str, Any]], *, full: bool
) -> None:
    from rich.rule import Rule  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    known, messages = node["metadata"], node["messages"]
    console.print()
    console.print(Rule(Text(visible(known["node_id"]), style="bold"), align="left", style="dim"))
    if not known["trainable"]:
        console.print(Text(f"untrainable: {one_line(known.get('untrainable_reason') or '')}", style="yellow"))
    pairs = zip(messages, before, strict=False)
    common = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if common is None:
        common = min(len(messages), len(before))
    if common:
        console.print(Text(f"… messages[0] to messages[{common - 1}] as above", style="dim"))
    for number, message in enumerate(messages[common:], common):
        _print_message(console, number, message, full=full)


def _print_message(console: "Console", number: int, message: Mapping[str, Any], *, full: bool) -> None:
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    role = str(message["role"])
    heading = Text(visible(role), style=f"bold {_COLOURS.get(role, 'white')}")
    console.print(heading.append(f"  messages[{number}]", style="not bold dim"))
    if message.get("reasoning_content"):
        console.print(
            Padding(Text(_cut(message["reasoning_content"], full=full), style="dim italic"), (0, 0, 0, 2))
        )
    text = text_of(message)
    if text:
        console.print(Padding(Text(_cut(text, full=full)), (0, 0, 0, 2)))
    for call in message.get("tool_calls", ()):
        named = call["function"]
        line = Text(visible(named["name"]), style="magenta")
        console.print(
            Padding(line.append(f" {_cut(named['arguments'], full=full)}", style="default"), (0, 0, 0, 2))
        )


def _cut(text: str, *, full: bool) -> str:
    if full or len(text) <= _SHOWN:
        return visible(text)
    return f"{visible(text[:_SHOWN])}… ({len(text) - _SHOWN:,} characters more; --full shows them)"
