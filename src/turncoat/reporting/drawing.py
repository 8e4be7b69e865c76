"""What all figures share: the palette, a canvas of a phone's width, and saving with the same bytes for the same figure.

A figure is drawn once, in light colours. On the page its colours become CSS variables, so that it follows the page into the dark.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

PAPER, INK, MUTED, RULE, FAINT, ACCENT = (
    "#ffffff",
    "#1d2329",
    "#5b6570",
    "#d9dee3",
    "#c3cad1",
    "#2b6cb0",
)
SERIES = ("#2a69ac", "#c05a17", "#2c8059", "#7a52b3", "#b53d4d", "#1a7f8e", "#86700f")
_VARIABLES = {
    PAPER: "--paper",
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    FAINT: "--faint",
    ACCENT: "--accent",
    **{colour: f"--series-{place}" for place, colour in enumerate(SERIES, start=1)},
}
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))

WIDTH = 4.0  # inches, of every figure
_LINE = 0.18  # inches, of a line of a legend
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",
    "svg.hashsalt": "turncoat",
    "path.simplify": True,
}


@dataclass(frozen=True, eq=False)
class Drawn:
    """A finished figure."""

    name: str  # of its files, without ending
    title: str
    caption: str
    alt: str  # what it shows, for those who cannot see it
    figure: Figure

    @cached_property
    def svg(self) -> bytes:
        """As a drawing, without a date in it."""
        return self._saved(format="svg", metadata={"Date": None, "Creator": None})

    @property
    def png(self) -> bytes:
        """As an image."""
        return self._saved(format="png", dpi=160, metadata={"Software": None})

    def _saved(self, **settings: Any) -> bytes:
        content = io.BytesIO()
        with drawing_style(), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=r".*[Gg]lyph.* missing from"
            )  # a name in another script is a box in the PNG only
            self.figure.savefig(content, **settings)
        return content.getvalue()

    @property
    def inline(self) -> Markup:
        """As part of a page: with the page's colours, and names that no other figure has."""
        text = self.svg.decode()
        box = re.search(r'viewBox="([^"]+)"', text)
        body = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(
            r" \n([MLQCz]) ?", r"\1", body
        )  # paths without their white space: thousands of dots weigh a fifth less
        body = re.sub(r'\bid="', f'id="{self.name}-', body)
        body = re.sub(r'(?:xlink:)?href="#', f'href="#{self.name}-', body)
        body = body.replace("url(#", f"url(#{self.name}-")
        for colour, variable in _VARIABLES.items():
            body = body.replace(f": {colour}", f": var({variable})")
        return Markup(
            f'<svg role="img" aria-label="{escape(self.alt)}" viewBox="{box[1] if box else ""}">{body}</svg>'
        )


def style(place: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line; no two of the first 21 are alike."""
    return {
        "color": SERIES[place % len(SERIES)],
        "linestyle": _DASHES[place // len(SERIES) % len(_DASHES)],
    }


def wrapped(text: str, width: int = 46) -> list[str]:
    """A label in lines that fit a canvas."""
    return textwrap.wrap(text, width) or [""]


def slug(text: str) -> str:
    """A part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@dataclass
class Canvas:
    """A figure whose parts stand at inches from the top, so that words need no measuring."""

    height: float
    figure: Figure = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing on it."""
        self.figure = Figure(figsize=(WIDTH, self.height))

    def axes(self, top: float, height: float, left: float = 0.7, right: float = 0.2) -> Any:
        """Axes across the canvas."""
        return self.figure.add_axes(
            (
                left / WIDTH,
                1 - (top + height) / self.height,
                (WIDTH - left - right) / WIDTH,
                height / self.height,
            )
        )

    def legend(
        self, top: float, entries: Sequence[tuple[str, dict[str, Any]]], left: float = 0.7
    ) -> None:
        """A name after a stroke of its line, one below the other."""
        for name, looks in entries:
            lines = wrapped(name)
            level = 1 - (top + 0.065) / self.height
            stroke = Line2D(
                [left / WIDTH, (left + 0.22) / WIDTH],
                [level] * 2,
                transform=self.figure.transFigure,
                linewidth=1.6,
                **looks,
            )
            self.figure.add_artist(stroke)
            self.figure.text(
                (left + 0.3) / WIDTH,
                1 - top / self.height,
                "\n".join(lines),
                va="top",
                color=INK,
                fontsize=8,
            )
            top += _LINE * len(lines)

    @staticmethod
    def legend_height(names: Sequence[str]) -> float:
        """Inches that a legend takes."""
        return _LINE * sum(len(wrapped(name)) for name in names)

    def drawn(self, name: str, title: str, caption: str, alt: str) -> Drawn:
        """Finished."""
        return Drawn(name, title, caption, alt, self.figure)


def drawing_style() -> Any:
    """The look of every figure, within a `with`."""
    return matplotlib.rc_context(_STYLE)
