"""Draw what `bench_proxies.py --json FILE` measured: `python tests/bench/plot_proxies.py FILE PNG`."""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

INK, SOFT, GRID = "#1f2328", "#6e7781", "#e4e7eb"
COLOURS = {"floor": "#b8c0c8", "rolltap, memory": "#0b6e69", "LiteLLM": "#d98e3f"}
NAMES = {
    "floor": "a bare proxy",
    "rolltap, memory": "rolltap, every token recorded",
    "LiteLLM": "LiteLLM's proxy",
}


def plot(results: dict[str, dict[str, dict[str, float]]], target: Path) -> None:
    """CPU a request for each scene, on a logarithmic axis: one group of bars a scene."""
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "text.color": INK})
    servers = [name for name in COLOURS if any(name in scene for scene in results.values())]
    figure, axes = plt.subplots(figsize=(9, 0.62 * len(results) + 1.7), dpi=160)
    height = 0.8 / len(servers)
    for row, scene in enumerate(results.values()):
        for at, name in enumerate(servers):
            if name in scene:
                _bar(
                    axes,
                    row + (at - (len(servers) - 1) / 2) * height,
                    scene[name]["cpu_us"] / 1e3,
                    height,
                    name,
                )
    axes.set_xscale("log")
    axes.set_xlim(0.1, axes.get_xlim()[1] * 1.6)
    axes.set_yticks(range(len(results)), list(results))
    axes.invert_yaxis()
    axes.tick_params(length=0, colors=SOFT)
    axes.tick_params(axis="y", colors=INK)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlabel("CPU of the proxy for one request, ms (less is better)", color=SOFT, labelpad=8)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in servers]
    labels = [NAMES[name] for name in servers]
    figure.legend(handles, labels, loc="upper left", ncols=3, frameon=False, bbox_to_anchor=(0.01, 0.995))
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(target)


def _bar(axes: Any, y: float, value: float, height: float, name: str) -> None:
    axes.barh(y, value, height=height * 0.86, color=COLOURS[name])
    axes.text(value * 1.05, y, f"{value:.3g}", va="center", fontsize=8, color=SOFT)


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
