"""Reward by step, as a picture."""

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from game import FIXED_GUESSES, PERFECT_PLAY
from matplotlib.figure import Figure

INK, QUIET, GRID = "#1f2430", "#7a8190", "#e6e8ec"
COLOURS = ("#2f6fde", "#e0803a", "#2a9d6f", "#8a63d2", "#c94f7c")
SMOOTH = 3
"""Steps that the heavy line is the mean of."""


@dataclass
class Run:
    """What one seed gave."""

    seed: int
    greedy_before: tuple[float, int]
    rewards: list[float]
    checks: list[dict[str, Any]]
    greedy_after: tuple[float, int] = (0.0, 0)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def smoothed(rewards: list[float]) -> list[float]:
    """Each step's mean with those just before it."""
    return [fmean(rewards[max(0, at - SMOOTH + 1) : at + 1]) for at in range(len(rewards))]


def draw(runs: list[Run], path: Path) -> None:
    """Write the picture: a heavy smoothed line a seed over its faint points, and what play without learning gives."""
    figure = Figure(figsize=(8, 4.2), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    steps = max(len(run.rewards) for run in runs)
    for level, text in ((PERFECT_PLAY, "perfect play"), (FIXED_GUESSES, "four fixed guesses")):
        axes.axhline(level, color=QUIET, linewidth=0.8, linestyle=(0, (4, 4)), zorder=1)
        axes.text(0, level + 0.012, f"{text} {level:.2f}", color=QUIET, fontsize=8)
    for run, colour in zip(runs, COLOURS * len(runs), strict=False):
        axes.plot(run.rewards, "o", color=colour, markersize=3, alpha=0.35, markeredgewidth=0, zorder=2)
        line = smoothed(run.rewards)
        axes.plot(line, color=colour, linewidth=2, solid_capstyle="round", zorder=3, label=f"seed {run.seed}")
    axes.set_xlim(-0.3, max(steps - 0.7, 1))
    axes.set_ylim(0, 1)
    axes.set_xlabel("training step (40 games each)", color=QUIET, fontsize=9)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=QUIET, labelsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.set_title(
        "SmolLM2-135M learns to guess a number: mean reward of its games",
        loc="left",
        color=INK,
        fontsize=11,
        pad=12,
    )
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower right", ncols=len(runs))
    figure.savefig(path)
