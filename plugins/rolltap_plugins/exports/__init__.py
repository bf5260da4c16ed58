"""Export formats: one record, in the shape of each trainer."""

from rolltap import ExportFormat, hookimpl
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
FORMATS = {kind.name: kind for kind in _FORMATS}


@hookimpl
def export_format(name: str) -> ExportFormat | None:
    """A new one of that name, for one export."""
    kind = FORMATS.get(name)
    return kind() if kind else None


@hookimpl
def offers() -> dict[str, list[str]]:
    """The names it answers for."""
    return {"export_format": list(FORMATS)}
