"""The page: what stands where, and the template that lays it out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from turncoat.evaluation.results import Comparison, Results
from turncoat.reporting.choices import (
    orders_table,
    parts_table,
    regime_facts,
    regimes_table,
    selection_title,
    sensitivity_table,
    stability_table,
    transition_table,
)
from turncoat.reporting.collapse import (
    counts_figure,
    cycles_table,
    joint_table,
    occupancy_figure,
    separation_figure,
)
from turncoat.reporting.comparisons import (
    candidates_table,
    compared,
    comparisons_table,
    every_figure_table,
    provenance,
    published_table,
    scoring_table,
    slice_tables,
    tiers_table,
)
from turncoat.reporting.curves import curve_panels, precision_recall, reliability
from turncoat.reporting.drawing import Drawn, drawing_style
from turncoat.reporting.forest_plots import differences, overview
from turncoat.reporting.formatting import (
    METRICS,
    criterion_text,
    metric_of,
    percent,
    plain,
    signed,
    signed_interval,
)
from turncoat.reporting.latents import DISTRUST, label_map, points_table, regime_map
from turncoat.reporting.manifold import axes_table, axis_figures, bins_table, manifold_facts
from turncoat.reporting.states import (
    criteria_figure,
    diagnostics_figure,
    fraud_shares_figure,
    transitions_figure,
)
from turncoat.reporting.tables import Table
from turncoat.reporting.training import losses_figure, losses_table, trainings_table

_PRECISION_RECALL = (
    "Candidates of one kind in colour, all others in grey. Curves are of all folds together, first seed.",
)
_RELIABILITY = (
    "What was said against what happened, in bins of equally many rows: on the dotted line both agree. Only scores that are "
    "probabilities; all folds together, first seed.",
)


@dataclass(frozen=True)
class Block:
    """A piece of a section: words, facts, figures and tables, whichever it has, in this order."""

    title: str = ""
    words: tuple[str, ...] = ()
    facts: tuple[tuple[str, str, str], ...] = ()  # name, figure, meaning
    figures: tuple[Drawn, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()  # behind a line that opens
    files: tuple[Table, ...] = ()  # only written to disk, since a figure shows them


@dataclass(frozen=True)
class Section:
    """A heading of the page and of its contents."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Report:
    """All that is written."""

    results: Results
    manifest: Mapping[str, Any]
    sections: tuple[Section, ...]

    @property
    def tables(self) -> list[Table]:
        """In the order of the page."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [table for block in blocks for table in (*block.tables, *block.folded, *block.files)]

    @property
    def figures(self) -> list[Drawn]:
        """In the order of the page."""
        return [
            figure
            for section in self.sections
            for block in section.blocks
            for figure in block.figures
        ]

    def html(self) -> str:
        """The page."""
        manifest = json.dumps(self.manifest, indent=2, ensure_ascii=False, default=str)
        template = _environment().get_template("report.html.jinja")
        headlines = [one for one in self.results.comparisons if one.headline]
        return template.render(
            results=self.results,
            data={plain(name): value for name, value in self.results.data.items()},
            sections=self.sections,
            headlines=[(one, *_headline(one)) for one in headlines],
            tested=provenance(self.results, compared(self.results, headlines)),
            metrics=[
                metric_of(name)
                for name in METRICS
                if any(name in one.figures for one in self.results.candidates)
            ],
            manifest=manifest if self.manifest else "",
        )


def make_report(results: Results, manifest: Mapping[str, Any]) -> Report:
    """Everything drawn and laid out, nothing written yet."""
    with drawing_style():
        sections = [
            Section("candidates", "Models", _candidates(results)),
            Section(
                "tiers",
                "Tier by tier",
                (Block(tables=(tiers_table(results),)),) if results.tiers else (),
            ),
            Section(
                "published",
                "Beside published figures",
                (Block(tables=(published_table(results),)),) if results.published else (),
            ),
            Section(
                "scoring",
                "Raw or corrected, filtered or smoothed",
                (Block(tables=(scoring_table(results),)),) if results.scoring else (),
            ),
            Section("curves", "Curves", _curves(results)),
            Section(
                "slices",
                "Cold start and scenarios",
                tuple(Block(tables=(table,)) for table in slice_tables(results)),
            ),
            Section(
                "orders",
                "Choosing K",
                tuple(_selection(results, place) for place in range(len(results.selections))),
            ),
            Section(
                "regimes",
                "Regimes",
                tuple(_regimes(results, place) for place in range(len(results.regimes))),
            ),
            Section("neural", "Inside the neural tier", _neural(results)),
            Section("differences", "Differences", _differences(results)),
            Section(
                "errata",
                "What the errata change",
                (Block(words=results.errata),) if results.errata else (),
            ),
            Section("split", "How the data were split", _split(results)),
        ]
    return Report(results, manifest, tuple(section for section in sections if section.blocks))


def _candidates(results: Results) -> tuple[Block, ...]:
    if not results.candidates:
        return ()
    tables = Block(tables=(candidates_table(results),), folded=(every_figure_table(results),))
    return (
        tables,
        Block(
            figures=_present(overview(results, "average_precision"), overview(results, "ece_mass"))
        ),
    )


def _curves(results: Results) -> tuple[Block, ...]:
    panels = curve_panels(results)
    blocks = (
        Block(
            "Precision and recall",
            _PRECISION_RECALL,
            figures=_present(*(precision_recall(results, panel) for panel in panels)),
        ),
        Block(
            "Reliability",
            _RELIABILITY,
            figures=_present(*(reliability(results, panel) for panel in panels)),
        ),
    )
    return tuple(block for block in blocks if block.figures)


def _selection(results: Results, place: int) -> Block:
    selection = results.selections[place]
    kept, best = (
        "none" if k is None else f"K = {k}"
        for k in (selection.by_eligibility, selection.by_criterion)
    )
    facts = (
        ("Used", f"K = {selection.used}" if selection.is_used else "no", selection.why_used),
        ("By eligibility", kept, "one regime worth looking at"),
        (
            "By criterion",
            best,
            "" if selection.criterion is None else criterion_text(selection.criterion),
        ),
        ("Fraud share", percent(selection.base_rate), "of all rows of the part"),
    )
    tables = [orders_table(results, place)] if selection.orders else []
    tables += [sensitivity_table(results, place)] if selection.sensitivity else []
    tables += [stability_table(results, place)] if selection.stability else []
    figures = _present(criteria_figure(results, place), diagnostics_figure(results, place))
    return Block(selection_title(selection), facts=facts, figures=figures, tables=tuple(tables))


def _regimes(results: Results, place: int) -> Block:
    table = results.regimes[place]
    figures = _present(fraud_shares_figure(results, place), transitions_figure(results, place))
    tables = (regimes_table(results, place),)
    return Block(
        table.candidate,
        (),
        tuple(regime_facts(table)),
        figures,
        tables,
        files=(transition_table(results, place),),
    )


def _neural(results: Results) -> tuple[Block, ...]:
    latents = (block for place in range(len(results.latents)) for block in _latents(results, place))
    return (*_trainings(results), *latents, *_joint(results))


def _trainings(results: Results) -> tuple[Block, ...]:
    if not results.trainings:
        return ()
    figures = _present(*(losses_figure(results, place) for place in range(len(results.trainings))))
    return (
        Block(
            "Training",
            figures=figures,
            tables=(trainings_table(results),),
            files=(losses_table(results),),
        ),
    )


def _latents(results: Results, place: int) -> tuple[Block, ...]:
    latents = results.latents[place]
    maps = _present(regime_map(results, place), label_map(results, place))
    shown = Block(
        f"Map of the latents, {latents.candidate}",
        (DISTRUST,),
        figures=maps,
        files=(points_table(results, place),),
    )
    tables, files = (
        ((axes_table(results, place),), (bins_table(results, place),)) if latents.axes else ((), ())
    )
    facts, figures = manifold_facts(latents), tuple(axis_figures(results, place))
    tested = Block(
        f"One manifold or not, {latents.candidate}",
        latents.verdict,
        facts,
        figures,
        tables,
        files=files,
    )
    return (shown, tested) if maps else (tested,)


def _joint(results: Results) -> tuple[Block, ...]:
    joint = results.joint
    if joint is None:
        return ()
    figures = _present(
        *(draw(results, joint) for draw in (occupancy_figure, separation_figure, counts_figure))
    )
    title = "Encoder and states trained together"
    return (
        Block(
            title,
            joint.verdict,
            figures=figures,
            tables=(joint_table(results, joint),),
            files=(cycles_table(results, joint),),
        ),
    )


def _differences(results: Results) -> tuple[Block, ...]:
    if not results.comparisons:
        return ()
    return (Block(figures=tuple(differences(results)), tables=(comparisons_table(results),)),)


def _split(results: Results) -> tuple[Block, ...]:
    return (
        Block(
            words=(results.split,) if results.split else (),
            tables=(parts_table(results),) if results.parts else (),
        ),
    )


def _headline(one: Comparison) -> tuple[str, str, str]:
    """A difference, its metric and its interval, as shown."""
    return signed(one.difference), metric_of(one.metric).label, signed_interval(one.by_customer)


def _present(*figures: Drawn | None) -> tuple[Drawn, ...]:
    return tuple(figure for figure in figures if figure is not None)


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("turncoat.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
