"""A session as its client knows it."""

from collections.abc import Sequence

from msgspec import Struct


class Session(Struct, frozen=True, kw_only=True):
    """One rollout: its id, and the addresses that an agent is pointed at. A plain value, to be sent anywhere."""

    uuid: str
    url: str
    """The server's address."""
    group: str = ""
    model_name: str = ""

    @property
    def base_url(self) -> str:
        """The base URL for the openai package and what is built on it."""
        return f"{self.url}/{self.uuid}/v1"

    @property
    def openai_base_url(self) -> str:
        """The same."""
        return self.base_url

    @property
    def anthropic_base_url(self) -> str:
        """The base URL for the anthropic package, Claude Code and Google's client, which add the version themselves."""
        return f"{self.url}/{self.uuid}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables for an agent that runs as a process of its own."""
        return {
            "OPENAI_BASE_URL": self.openai_base_url,
            "OPENAI_API_KEY": "unused",
            "ANTHROPIC_BASE_URL": self.anthropic_base_url,
            "ANTHROPIC_API_KEY": "unused",
        }


SessionLike = Session | str
"""A session, or its id."""


def session_id(session: SessionLike) -> str:
    """The session's id."""
    return session if isinstance(session, str) else session.uuid


def several(sessions: SessionLike | Sequence[SessionLike]) -> Sequence[SessionLike]:
    """One session, or several, as several."""
    return [sessions] if isinstance(sessions, Session | str) else sessions
