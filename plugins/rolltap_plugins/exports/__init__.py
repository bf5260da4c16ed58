"""Export formats: one record, in the shape of each trainer."""

from rolltap import ExportFormat
from rolltap_plugins.exports.completions import AgentLightning, OpenEnv
from rolltap_plugins.exports.groups import Atropos, SkyRL
from rolltap_plugins.exports.parquet import Parquet
from rolltap_plugins.exports.record import JsonLines
from rolltap_plugins.exports.responses import TRL, Slime, Verl
from rolltap_plugins.exports.sequences import AReaL, PrimeRL, Tinker, TRLAsync
from rolltap_plugins.exports.trajectories import ATIF

_FORMATS: tuple[type[ExportFormat], ...] = (
    JsonLines,
    Parquet,
    TRL,
    TRLAsync,
    Verl,
    SkyRL,
    PrimeRL,
    Slime,
    AReaL,
    Atropos,
    Tinker,
    AgentLightning,
    ATIF,
    OpenEnv,
)
export_format = {kind.name: kind for kind in _FORMATS}
