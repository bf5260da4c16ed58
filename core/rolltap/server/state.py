"""What the application holds while it runs, and what a request carries."""

from aiohttp import web

from rolltap.bases.converters import MessageConverter
from rolltap.config import Config
from rolltap.models import Models
from rolltap.pipeline import Pipeline
from rolltap.plugins import Plugins
from rolltap.replays import Replays
from rolltap.sessions import Sessions

CONFIG = web.AppKey("CONFIG", Config)
PLUGINS = web.AppKey("PLUGINS", Plugins)
MODELS = web.AppKey("MODELS", Models)
SESSIONS = web.AppKey("SESSIONS", Sessions)
PIPELINE = web.AppKey("PIPELINE", Pipeline)
CONVERTERS = web.AppKey("CONVERTERS", dict[str, MessageConverter])
REPLAYS = web.AppKey("REPLAYS", Replays)

REQUEST_ID = web.RequestKey("REQUEST_ID", str)
