"""What is known of each plugin that was found, loaded or not."""

from typing import Literal

from msgspec import Struct, field


class PluginRecord(Struct, kw_only=True):
    """One plugin: where it came from and what became of it."""

    name: str
    """What it goes by in messages and in `[plugins] disable`."""
    source: str
    """Where it came from, in words: "built-in", "package foo (foo.plugin)", a file, "given to create_app"."""
    version: str = ""
    """Its package's version; "" for files and objects."""
    hooks: list[str] = field(default_factory=list)
    """The hooks it implements, sorted."""
    offers: dict[str, list[str]] = field(default_factory=dict)
    """The names, kinds and dialects that it says it answers for, by hook."""
    state: Literal["loaded", "failed", "disabled"] = "loaded"
    error: str | None = None
    """Why it was not loaded; None where it was, or is disabled."""
    way_out: str | None = None
    """What to do about that."""
