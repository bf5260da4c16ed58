"""The config: TOML, a dict or nothing, with overrides from the environment."""

from rolltap.config.loading import EMBEDDED_MODEL, Config
from rolltap.config.sections import BackendConfig, ModelConfig, PluginsConfig, ServerConfig, StoreConfig

__all__ = [
    "EMBEDDED_MODEL",
    "BackendConfig",
    "Config",
    "ModelConfig",
    "PluginsConfig",
    "ServerConfig",
    "StoreConfig",
]
