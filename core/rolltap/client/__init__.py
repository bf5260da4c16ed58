"""What a trainer drives a rolltap server with: sessions for agents, their rows, rewards, and new weights."""

from rolltap.client.asynchronous import AsyncClient
from rolltap.client.blocking import Client
from rolltap.client.sessions import Session, SessionLike

__all__ = ["AsyncClient", "Client", "Session", "SessionLike"]
