"""Plots of results: one figure per benchmark, one panel per group.

A bar is a median; its whisker goes from the lower quartile to the upper one. Panels of one unit
are drawn to their own scale, which always begins at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.command import number
from bench.result import Measure, Result

_OURS, _OTHERS = "#1f6f8b", "#b0b7bf"
_ROW_INCHES, _PANEL_INCHES, _WIDTH_INCHES = 0.32, 0.85, 9.0
_MOST_PANELS = 12
_LONGER = {"s": "seconds", "ms": "milliseconds", "ns": "nanoseconds", "µs": "microseconds"}


def plot(result: Result, folder: Path, ending: str = "svg") -> Path | None:
    """Draw a result into a file of the folder; None if there is nothing to draw."""
    groups = list(dict.fromkeys(measure.group for measure in result.measures))[:_MOST_PANELS]
    if not groups:
        return None
    panels = [[one for one in result.measures if one.group == group] for group in groups]
    heights = [_PANEL_INCHES + _ROW_INCHES * len(panel) for panel in panels]
    figure = Figure(figsize=(_WIDTH_INCHES, sum(heights) + 0.5), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, axis in zip(panels, axes, strict=True):
        _draw(panel, axis)
    figure.suptitle(result.title, x=0.01, ha="left", fontweight="bold")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.bench}.{ending}"
    # Without a date or chance, so that the same result gives the same file.
    with rc_context({"svg.hashsalt": "assent", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=110, metadata={"Date": None} if ending == "svg" else None)
    return path


def _draw(panel: Sequence[Measure], axis: Axes) -> None:
    places = range(len(panel))
    medians = [measure.median for measure in panel]
    spread = [
        [measure.median - measure.lower for measure in panel],
        [measure.upper - measure.median for measure in panel],
    ]
    ours = [measure.name.startswith("assent") for measure in panel]
    # Where nobody else takes part, all are ours.
    colours = [_OURS if mine or not any(ours) else _OTHERS for mine in ours]
    axis.barh(places, medians, color=colours, height=0.7)
    axis.errorbar(medians, places, xerr=spread, fmt="none", ecolor="#333333", capsize=3, lw=1)
    room = max(max(measure.upper for measure in panel), 0)
    for place, measure in zip(places, panel, strict=True):
        axis.text(
            max(measure.upper, 0) + 0.012 * room,
            place,
            number(measure.median),
            va="center",
            fontsize=9,
        )
    axis.set_yticks(places, [measure.name for measure in panel], fontsize=9)
    axis.invert_yaxis()
    axis.set_xlim(left=min(0, *medians, 0), right=1.14 * room or 1)
    unit = panel[0].unit
    axis.set_title(f"{panel[0].group} ({_LONGER.get(unit, unit)})", loc="left", fontsize=10)
    axis.tick_params(axis="x", labelsize=8)
    axis.xaxis.set_major_formatter(lambda value, _: number(value) if value else "0")
    axis.spines[["top", "right"]].set_visible(False)
