"""What all figures share: palette, a canvas as wide as a phone, and reproducible files.

A figure is drawn once, in light colours. On the page its colours become CSS variables, so that it
follows the page into dark mode.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from scipy.optimize import isotonic_regression

from turncoat.arrays import Array

Legend = Sequence[tuple[str, dict[str, Any]]]  # names, and how their lines look

PAPER, INK, MUTED = "#ffffff", "#1d2329", "#5b6570"
RULE, FAINT, ACCENT = "#d9dee3", "#c3cad1", "#2b6cb0"
SERIES = ("#2a69ac", "#c05a17", "#2c8059", "#7a52b3", "#b53d4d", "#1a7f8e", "#86700f")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
_VARIABLES = {PAPER: "paper", INK: "ink", MUTED: "muted", RULE: "rule", FAINT: "faint"}
_VARIABLES |= {ACCENT: "accent", **{SERIES[n]: f"series-{n + 1}" for n in range(len(SERIES))}}
WIDTH = 4.0  # inches, of every figure
_LINE = 0.18  # inches, of a line of a legend
_STYLE = Path(__file__).with_name("report.mplstyle")
# Keyword arguments of matplotlib that several figures share.
POINT = {"marker": "o", "markersize": 5, "markeredgecolor": PAPER, "markeredgewidth": 0.9}
DOTTED: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": (0, (2, 2))}
_FONT, _LETTER = 8, 5.2  # points: the size of text, and about the width of a bold letter
TEXT: dict[str, Any] = {"fontsize": _FONT, "color": INK}


@dataclass(frozen=True, eq=False)
class ReportFigure:
    """A finished figure."""

    name: str  # of its files, without extension
    title: str
    caption: str
    alt: str  # description for screen readers
    figure: Figure

    @cached_property
    def svg(self) -> bytes:
        """The figure as SVG, without a date."""
        return self._save(format="svg", metadata={"Date": None, "Creator": None})

    @property
    def png(self) -> bytes:
        """The figure as PNG."""
        return self._save(format="png", dpi=160, metadata={"Software": None})

    @property
    def plot_box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the first axes, in shares of the figure."""
        box = self.figure.axes[0].get_position()
        return box.x0, 1 - box.y1, box.x1, 1 - box.y0

    def _save(self, **settings: Any) -> bytes:
        content = io.BytesIO()
        with drawing_style(), warnings.catch_warnings():
            # A name in another script is a box in the PNG only.
            warnings.filterwarnings("ignore", message=r".*[Gg]lyph.* missing from")
            self.figure.savefig(content, **settings)
        return content.getvalue()

    @property
    def inline(self) -> Markup:
        """The SVG for a page: with the page's colours, and ids that no other figure has."""
        text = self.svg.decode()
        box = re.search(r'viewBox="([^"]+)"', text)
        body = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        # Paths without white space: thousands of dots weigh a fifth less.
        body = re.sub(r" \n([MLQCz]) ?", r"\1", body)
        body = re.sub(r'\bid="', f'id="{self.name}-', body)
        body = re.sub(r'(?:xlink:)?href="#', f'href="#{self.name}-', body)
        body = body.replace("url(#", f"url(#{self.name}-")
        for colour, variable in _VARIABLES.items():
            body = body.replace(f": {colour}", f": var(--{variable})")
        label, view = escape(self.alt), box[1] if box else ""
        return Markup(f'<svg role="img" aria-label="{label}" viewBox="{view}">{body}</svg>')


def line_style(place: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line; the first 21 all differ."""
    dashes = DASHES[place // len(SERIES) % len(DASHES)]
    return {"color": SERIES[place % len(SERIES)], "linestyle": dashes}


def label_ends(axes: Any, lines: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> None:
    """Write each line's name to the right of the axes, in its colour, led to from the line's end.

    Lines are as for `label_lines`. Names are as near to their ends as they can be without touching.
    """
    ends = np.array([axes.transLimits.transform((0.0, ys[-1]))[1] for _, _, ys in lines])
    texts = [wrap_text(name, 19) for name, *_ in lines]
    height = axes.get_position().height * axes.figure.get_figheight()
    order = np.argsort(-ends, kind="stable")
    sizes = np.array([0.85 * _LINE * len(texts[place]) + 0.05 for place in order]) / height
    below = np.cumsum(sizes) - sizes / 2  # of each middle, if names touch from the top on
    levels = isotonic_regression(ends[order] + below, increasing=False).x
    levels = np.clip(levels, sizes.sum(), 1.0) - below
    for place, level in zip(order.tolist(), levels.tolist(), strict=True):
        colour = line_style(place)["color"]
        to_axes = {"transform": axes.transAxes, "clip_on": False}
        axes.plot([1, 1.09], [ends[place], level], color=colour, linewidth=0.8, **to_axes)
        text = {"ha": "left", "va": "center", "fontsize": _FONT, "linespacing": 1.05}
        axes.text(1.11, level, "\n".join(texts[place]), color=colour, **text, **to_axes)


def label_lines(
    axes: Any,
    lines: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    others: Sequence[tuple[Sequence[float], Sequence[float]]] = (),
) -> None:
    """Write each line's name beside it, in its colour, where it hides least.

    Lines are names with xs and ys, in the order of `line_style`; `others` have no name, but should
    not be hidden either. Set limits and scales before.
    """
    points = [_trace(axes, xs, ys) for _, xs, ys in lines]
    unnamed = [_trace(axes, xs, ys)[::10] for xs, ys in others]
    drawn, taken = np.concatenate([*points, *unnamed]), np.empty((0, 4))
    frame, unit = axes.get_window_extent(), axes.figure.dpi / 72
    for place, ((name, *_), own) in enumerate(zip(lines, points, strict=True)):
        half, height, gap = len(name) * _LETTER / 2 * unit, 1.15 * _FONT * unit, 4 * unit
        anchors = own[:: max(len(own) // 60, 1)]
        x, y = anchors.T
        sides = y - height / 2
        bottoms = np.concatenate([y + gap, y - gap - height, sides, sides])  # and left, and right
        middles = np.concatenate([x, x, x - gap - half, x + gap + half])
        middles = np.clip(middles, frame.x0 + half, frame.x1 - half)
        boxes = np.stack([middles - half, bottoms, middles + half, bottoms + height], axis=1)
        is_inside = (boxes[:, 1] >= frame.y0 + gap) & (boxes[:, 3] <= frame.y1)
        costs = _count_inside(boxes, drawn) + 1000.0 * _overlaps(boxes, taken) + 1e6 * ~is_inside
        box = boxes[costs.argmin()]
        taken = np.vstack([taken, box + np.array([-gap, 0, gap, 0])])
        place_of_text = axes.transData.inverted().transform(((box[0] + box[2]) / 2, box[1]))
        looks = {"fontsize": _FONT, "color": line_style(place)["color"], "fontweight": "bold"}
        axes.text(*place_of_text, name, ha="center", va="bottom", **looks)


def _trace(axes: Any, xs: Sequence[float], ys: Sequence[float]) -> Array:
    """Points of a line on the canvas, close to each other [N, 2]."""
    corners = axes.transData.transform(np.column_stack([xs, ys]))
    steps = np.linspace(0, len(corners) - 1, 400)
    return np.column_stack([np.interp(steps, np.arange(len(corners)), c) for c in corners.T])


def _count_inside(boxes: Array, points: Array) -> Array:
    """How many points are in each of the boxes (left, bottom, right, top)."""
    x, y = points.T
    left, bottom, right, top = boxes.T[:, :, None]
    return np.asarray(((x >= left) & (x <= right) & (y >= bottom) & (y <= top)).sum(axis=1))


def _overlaps(boxes: Array, others: Array) -> Array:
    """How many of the other boxes each box touches."""
    left, bottom, right, top = boxes.T[:, :, None]
    apart = (others[:, 0] > right) | (others[:, 2] < left)
    apart |= (others[:, 1] > top) | (others[:, 3] < bottom)
    return np.asarray((~apart).sum(axis=1))


def wrap_text(text: str, width: int = 46) -> list[str]:
    """A label in lines that fit a canvas."""
    return textwrap.wrap(text, width) or [""]


def slugify(text: str) -> str:
    """A part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def format_axis(axis: Any, formatter: Callable[[float], str]) -> None:
    """Label an axis' ticks with a formatting function."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: formatter(value)))


def drawing_style() -> Any:
    """The style of every figure, as a context manager."""
    return matplotlib.style.context(_STYLE)


class Canvas:
    """A figure whose parts are placed in inches from the top, so that text needs no measuring."""

    def __init__(self, height: float) -> None:
        self.height, self.figure = height, Figure(figsize=(WIDTH, height))

    def axes(self, top: float, height: float, left: float = 0.7, right: float = 0.2) -> Any:
        """Axes across the canvas."""
        bottom, width = 1 - (top + height) / self.height, (WIDTH - left - right) / WIDTH
        return self.figure.add_axes((left / WIDTH, bottom, width, height / self.height))

    def text(self, left: float, top: float, text: str) -> None:
        """Text below a place."""
        self.figure.text(left / WIDTH, 1 - top / self.height, text, va="top", **TEXT)

    def legend(self, top: float, legend: Legend, left: float = 0.7) -> None:
        """Names after a stroke of their line, one below the other."""
        for name, looks in legend:
            lines = wrap_text(name)
            xs, level = [left / WIDTH, (left + 0.22) / WIDTH], 1 - (top + 0.065) / self.height
            stroke = Line2D(xs, [level] * 2, linewidth=1.6, **looks)
            stroke.set_transform(self.figure.transFigure)
            self.figure.add_artist(stroke)
            self.text(left + 0.3, top, "\n".join(lines))
            top += _LINE * len(lines)

    @staticmethod
    def legend_height(legend: Legend) -> float:
        """Inches that a legend takes."""
        return _LINE * sum(len(wrap_text(name)) for name, _ in legend)

    def finish(self, name: str, title: str, caption: str, alt: str) -> ReportFigure:
        """The finished figure."""
        return ReportFigure(name, title, caption, alt, self.figure)


def plot_with_legend(
    legend: Legend, plot: float, below: float, margin: float
) -> tuple[Canvas, Any]:
    """A canvas with axes `plot` inches high, and a legend below them."""
    top = 0.15
    canvas = Canvas(top + plot + below + Canvas.legend_height(legend) + margin)
    canvas.legend(top + plot + below, legend)
    return canvas, canvas.axes(top, plot)


def stack_axes(titles: Sequence[str], xlabel: str, legend: Legend = ()) -> tuple[Canvas, list[Any]]:
    """A canvas with small axes below each other, and a legend below them."""
    plot, gap, top, below, left = 0.95, 0.5, 0.3, 0.62, 0.75  # inches
    end = top + len(titles) * (plot + gap) - gap
    canvas = Canvas(end + below + Canvas.legend_height(legend))
    stacked = [canvas.axes(top + n * (plot + gap), plot, left) for n in range(len(titles))]
    for axes, title in zip(stacked, titles, strict=True):
        axes.set_title(title)
        axes.locator_params(axis="y", nbins=4)
    stacked[-1].set_xlabel(xlabel)
    canvas.legend(end + below - 0.08, legend, left)
    return canvas, stacked
