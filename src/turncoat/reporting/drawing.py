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
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

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
TEXT: dict[str, Any] = {"fontsize": 8, "color": INK}


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
