"""What the pieces of the two-sided chains are worth: words, table and figures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.results import PieceWorth, Results
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting import tables
from turncoat.reporting.drawing import ReportFigure
from turncoat.reporting.forest_plots import ForestRow, draw_forest, list_points
from turncoat.reporting.tables import Cell, Column, Table, build_table

_AP = "average_precision"
_MIN_SHOWN = 1e-4  # smaller differences have more digits than a figure's margin


class _PieceText(NamedTuple):
    title: str
    without: str  # what the chains do instead
    is_plural: bool = False


_TEXTS = {
    "time_gaps": _PieceText(
        "time gaps", "the customer's chain counts transactions, not days", is_plural=True
    ),
    "own_profile": _PieceText(
        "the customer's own profile", "one profile for all, which no customer changes"
    ),
    "row_share": _PieceText(
        "telling the intruder's transactions from the owner's",
        "every transaction while an intruder is present is the intruder's",
    ),
    "counterparty": _PieceText("the counterparty's chain", "counterparties have no chain"),
    "phases": _PieceText(
        "the duration of compromises", "they end at random, however long they have lasted"
    ),
}


def describe_pieces(results: Results) -> tuple[str, ...]:
    """A sentence for each piece, whatever the sign; empty without chains."""
    return () if results.pieces is None else tuple(map(_describe, results.pieces.pieces))


def pieces_table(results: Results) -> Table:
    """Metrics with all pieces and without each, and the differences."""
    assert results.pieces is not None

    def name(one: PieceWorth | None) -> Cell:
        if one is None:
            return Cell("all pieces", "all")
        text = _text_of(one.piece)
        return Cell(f"without {text.title}", one.piece, (text.without,))

    def value(metric: str, one: PieceWorth | None) -> Cell:
        assert results.pieces is not None
        found = (results.pieces if one is None else one).values.get(metric)
        return Cell(show.number(found, show.metric_text(metric).decimals), found)

    def difference(metric: str, one: PieceWorth | None) -> Cell:
        if one is None or metric not in one.differences:
            return Cell(show.DASH, None, more=tables.bounds(None))
        found, interval = one.differences[metric], one.intervals[metric]
        small = (show.signed_interval(interval),)
        return Cell(show.signed(found), found, small, tables.bounds(interval))

    columns = [Column("piece", "Chains", get=name)]
    for metric in _list_metrics(results):
        shown = show.metric_text(metric)
        get, gap = partial(value, metric), partial(difference, metric)
        about = f"all pieces minus without it; {shown.better} is better"
        columns.append(Column(metric, shown.label, show.number, shown.meaning, get))
        columns.append(Column(f"{metric}_difference", "Difference", show.signed, about, gap))
    columns.append(Column("effect", "The piece", get=lambda o: "" if o is None else _judge(o)))
    folds = "1 fold" if results.n_folds == 1 else f"{results.n_folds} folds"
    caption = (
        "Detectors of kind chains, fitted again without each piece. Differences are all pieces "
        "minus without it, with 90 % bootstrap intervals over customers. Split: "
        f"{results.protocol.name}, test rows of {folds}, first seed; inference: filtered; out of "
        "sample."
    )
    return build_table("pieces", caption, columns, [None, *results.pieces.pieces])


def piece_figures(results: Results) -> Iterator[ReportFigure]:
    """A forest plot of differences per metric."""
    assert results.pieces is not None
    for metric in _list_metrics(results):
        rows = []
        shown_pieces = (one for one in results.pieces.pieces if one.is_used)
        for one in (one for one in shown_pieces if metric in one.differences):
            label, found = show.capitalise(_text_of(one.piece).title), one.differences[metric]
            interval = one.intervals[metric]
            colour = draw.SERIES[0] if interval[0] > 0 or interval[1] < 0 else draw.MUTED
            text = show.signed(found if abs(found) >= _MIN_SHOWN else 0.0)
            rows.append(ForestRow(label, found, text, interval, None, colour))
        if not rows:
            continue
        shown = show.metric_text(metric)
        label = f"Difference in {shown.label} ({shown.better} is better)"
        caption = (
            "All pieces minus without this one, with 90 % intervals over customers. Grey: the "
            "interval includes 0."
        )
        alt = f"Differences in {shown.label} with intervals: {list_points(rows)}"
        canvas = draw_forest(rows, label, 0.0)
        title = f"What each piece adds in {shown.label}"
        yield canvas.finish(f"pieces-{draw.slugify(metric)}", title, caption, alt)


def _list_metrics(results: Results) -> list[str]:
    assert results.pieces is not None
    return show.order_metrics(results.pieces.values)


def _describe(one: PieceWorth) -> str:
    title, _, is_plural = _text_of(one.piece)
    name, effect = f"{title[:1].upper()}{title[1:]}", _judge(one)
    start = f"{name} {'are' if is_plural else 'is'}"
    if effect == "not used":
        return f"{start} not used: the chains that were learnt here do not have it."
    if effect == "unknown":
        return f"{start} of unknown worth: average precision does not exist on these rows."
    found, interval = one.differences[_AP], one.intervals[_AP]
    low, high = (show.number(end) for end in interval)
    metric = METRICS[_AP].title.lower()
    if effect == "no clear effect":
        difference = f"difference in {metric} {show.signed(found, 3)}, {low} to {high}"
        return f"{name} {'have' if is_plural else 'has'} no clear effect ({difference})."
    worth = "worth" if effect == "helps" else "harmful here:"
    return f"{start} {worth} {show.number(found)} of {metric} ({low} to {high})."


def _judge(one: PieceWorth) -> str:
    """The effect in a word or two, by the interval of average precision."""
    if not one.is_used:
        return "not used"
    if _AP not in one.intervals:
        return "unknown"
    low, high = one.intervals[_AP]
    return "helps" if low > 0 else "harmful here" if high < 0 else "no clear effect"


def _text_of(piece: str) -> _PieceText:
    return _TEXTS.get(piece) or _PieceText(piece.replace("_", " "), "")
