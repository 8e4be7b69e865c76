"""Whether latents are one manifold that regimes cut into segments: fraud and regimes along an axis, and what that says in figures."""

from __future__ import annotations

from matplotlib.ticker import FuncFormatter, MaxNLocator

from turncoat.evaluation.results import Axis, LatentMap, Results
from turncoat.reporting.drawing import INK, PAPER, Canvas, Drawn
from turncoat.reporting.formatting import count, number, percent, plain, round_percent
from turncoat.reporting.latents import FRAUD, key_height, regime_key, regime_looks, where
from turncoat.reporting.tables import Cell, Column, RowGroup, Table, one_group, words

_UPPER, _LOWER, _GAP, _TOP, _BELOW = 0.95, 1.45, 0.45, 0.3, 0.6  # inches


def axis_figures(results: Results, place: int) -> list[Drawn]:
    """Fraud share and regimes by bin, a figure per axis that has bins."""
    latents = results.latents[place]
    return [
        _axis_figure(results, place, at) for at, axis in enumerate(latents.axes) if axis.fraud_share
    ]


def axes_table(results: Results, place: int) -> Table:
    """What each axis says, in figures."""
    latents = results.latents[place]
    columns = (
        Column("axis", "Axis", is_number=False),
        Column(
            "segmented",
            "Segmented",
            meaning="variance of ranks between regimes, over that of unbroken segments: 100 % for segments, 0 % if mixed",
        ),
        Column(
            "monotone",
            "Monotone",
            meaning="share of the variance of the fraud share by bin that the best monotone curve explains",
        ),
        Column(
            "gradual",
            "Gradual",
            meaning="0 % where the fraud share switches at one boundary, 100 % for an even ramp",
        ),
        Column(
            "adjacent",
            "Adjacent",
            meaning="share of the regimes whose nearest centroid is that of a regime next to them here",
        ),
        Column(
            "valley",
            "Valley",
            meaning="depth of the deepest valley of the density: 0 without one, 1 for a gap",
        ),
        Column(
            "head",
            "Follows the head",
            meaning="rank correlation with the score of the encoder's own head",
        ),
        Column("order", "Regimes in order", is_number=False, meaning="by their median place"),
    )
    rows = [
        (
            words(plain(axis.name)),
            Cell(percent(axis.segmented), axis.segmented),
            Cell(percent(axis.monotone), axis.monotone),
            Cell(percent(axis.gradual), axis.gradual),
            Cell(percent(axis.adjacent), axis.adjacent),
            Cell(number(axis.valley, 2), axis.valley),
            Cell(number(axis.head, 2), axis.head),
            words(_in_order(axis, latents)),
        )
        for axis in latents.axes
    ]
    caption = (
        f"Latents along single directions, {latents.candidate}; no UMAP. {where(results, latents)}"
    )
    return Table(f"manifold_{place + 1}", caption, columns, one_group(rows))


def bins_table(results: Results, place: int) -> Table:
    """Fraud share and shares of regimes by bin; the page draws them."""
    latents = results.latents[place]
    regimes = range(
        max((len(shares) for axis in latents.axes for shares in axis.regime_shares), default=0)
    )
    columns = (
        Column("bin", "Bin"),
        Column("fraud_share", "Fraud share"),
        *(Column(f"regime_{k}", f"Regime {k}") for k in regimes),
    )
    groups = [
        RowGroup(
            axis.name,
            tuple(
                (Cell(count(at), at), *(Cell(percent(share), share) for share in (fraud, *shares)))
                for at, (fraud, shares) in enumerate(
                    zip(axis.fraud_share, axis.regime_shares, strict=True), start=1
                )
            ),
        )
        for axis in latents.axes
    ]
    caption = (
        f"Bins of equally many rows along each axis, {latents.candidate}. {where(results, latents)}"
    )
    return Table(f"bins_{place + 1}", caption, columns, tuple(groups), group_name="axis")


def manifold_facts(latents: LatentMap) -> tuple[tuple[str, str, str], ...]:
    """Single figures of the latents: name, figure, meaning."""
    return (
        (
            "First component",
            percent(latents.first_component),
            "of the latents' variance lies along it",
        ),
        (
            "Largest piece",
            percent(latents.largest_piece),
            "of the rows hang together as nearest neighbours; all if the latents are one piece",
        ),
    )


def _axis_figure(results: Results, place: int, at: int) -> Drawn:
    latents = results.latents[place]
    axis = latents.axes[at]
    present = _stacked(axis)
    plots = _TOP + _UPPER + _GAP + _LOWER
    canvas = Canvas(plots + _BELOW + key_height(present))
    edges = range(len(axis.fraud_share) + 1)
    above = canvas.axes(_TOP, _UPPER)
    above.stairs(axis.fraud_share, edges, fill=True, color=FRAUD, alpha=0.25)
    above.stairs(axis.fraud_share, edges, color=FRAUD, linewidth=1.3, baseline=None)
    above.set_ylim(0, max(axis.fraud_share) * 1.08 or 1)
    above.set_title("Fraud share", color=INK)
    above.tick_params(labelbottom=False)
    below = canvas.axes(_TOP + _UPPER + _GAP, _LOWER)
    level = [0.0] * len(axis.fraud_share)
    for regime in present:
        top = [low + shares[regime] for low, shares in zip(level, axis.regime_shares, strict=True)]
        looks = regime_looks(regime, latents.fraud_regime)
        below.stairs(
            top, edges, baseline=level, fill=True, facecolor=looks["color"], alpha=looks["alpha"]
        )
        below.stairs(top, edges, baseline=None, color=PAPER, linewidth=0.7)
        level = top
    below.set(ylim=(0, 1), xlabel="Bins of equally many rows, low to high")
    below.set_title("Share of every regime", color=INK)
    for axes in (above, below):
        axes.set_xlim(0, len(axis.fraud_share))
        axes.locator_params(axis="y", nbins=4)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: round_percent(value)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(visible=axes is above, axis="y")
    regime_key(canvas, plots + _BELOW - 0.1, present, latents.fraud_regime, left=0.7)
    what = f"Fraud and regimes along the {axis.name} of the latents, {latents.candidate}; no UMAP. k* is the fraud regime."
    highest = max(axis.fraud_share)
    alt = (
        f"Fraud share along the {axis.name}: {percent(axis.fraud_share[0])} in the first bin, {percent(axis.fraud_share[-1])} in the last, "
        f"at most {percent(highest)} in bin {axis.fraud_share.index(highest) + 1}; regimes in the order {_in_order(axis, latents)}"
    )
    return canvas.drawn(
        f"axis-{place + 1}-{at + 1}", plain(axis.name), f"{what} {where(results, latents)}", alt
    )


def _stacked(axis: Axis) -> list[int]:
    """Regimes that have a share, in their order along the axis."""
    every = dict.fromkeys((*axis.order, *range(len(axis.regime_shares[0]))))
    return [regime for regime in every if any(shares[regime] > 0 for shares in axis.regime_shares)]


def _in_order(axis: Axis, latents: LatentMap) -> str:
    return ", ".join(
        f"{regime} (k*)" if regime == latents.fraud_regime else str(regime) for regime in axis.order
    )
