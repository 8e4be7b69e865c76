"""The report: which tables and figures it has, in which order, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from turncoat.errors import BundleError
from turncoat.evaluation.results import Results
from turncoat.reporting import comparisons, narrative, regimes
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting.curves import curve_panels, precision_recall_figure, reliability_figure
from turncoat.reporting.drawing import ReportFigure
from turncoat.reporting.forest_plots import difference_figures, overview_figure
from turncoat.reporting.paper import latent_map, training
from turncoat.reporting.tables import Table
from turncoat.storage import replace_file

_PRECISION_RECALL = (
    "Models of one kind in colour, all others in grey. Curves are of all folds together, first "
    "seed.",
)
_RELIABILITY = (
    "Mean score against fraud rate in bins of equally many rows: on the dotted line both agree. "
    "Only scores that are probabilities; all folds together, first seed.",
)


@dataclass(frozen=True)
class Block:
    """A piece of a section: text, facts, figures and tables, in this order."""

    title: str = ""
    text: tuple[str, ...] = ()
    facts: tuple[tuple[str, str, str], ...] = ()  # name, number, meaning
    figures: tuple[ReportFigure | None, ...] = ()  # None for one that has nothing to show
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()  # shown on demand
    files: tuple[Table, ...] = ()  # written to disk only, because a figure shows them

    def __post_init__(self) -> None:
        """Drop figures that have nothing to show."""
        shown = tuple(figure for figure in self.figures if figure is not None)
        object.__setattr__(self, "figures", shown)


@dataclass(frozen=True)
class Section:
    """A heading of the page and of its contents."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Report:
    """Everything that is written."""

    results: Results
    manifest: Mapping[str, Any]
    sections: tuple[Section, ...]

    @property
    def _blocks(self) -> list[Block]:
        return [block for section in self.sections for block in section.blocks]

    @property
    def tables(self) -> list[Table]:
        """All tables in the order of the page."""
        return [t for block in self._blocks for t in (*block.tables, *block.folded, *block.files)]

    @property
    def figures(self) -> list[ReportFigure]:
        """All figures in the order of the page."""
        return [figure for block in self._blocks for figure in block.figures if figure]

    def html(self) -> str:
        """The page."""
        environment = Environment(
            loader=PackageLoader("turncoat.reporting", "."),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        results, manifest = self.results, ""
        if self.manifest:
            manifest = json.dumps(self.manifest, indent=2, ensure_ascii=False, default=str)
        headlines = [one for one in results.comparisons if one.topic]
        compared = comparisons.compared_candidates(results, headlines)
        measured = {metric for one in results.candidates for metric in one.metrics}
        return environment.get_template("report.html.jinja").render(
            title=narrative.title_results(results),
            results=results,
            summary=narrative.summarise(results),
            warnings=narrative.list_warnings(results),
            facts=_data_facts(results),
            sections=self.sections,
            headlines=[
                {
                    "topic": narrative.TOPICS.get(one.topic, one.topic),
                    "pair": f"{one.first} minus {one.second}",
                    "difference": show.signed(one.difference),
                    "metric": show.metric_text(one.metric).label,
                    "interval": show.signed_interval(one.customer_interval),
                }
                for one in headlines
            ],
            provenance=comparisons.provenance(results, compared),
            metrics=[text for name, text in show.METRIC_TEXTS.items() if name in measured],
            manifest=manifest,
        )


def write_report(results: Results, manifest: Mapping[str, Any], folder: Path) -> Path:
    """Write `report.html`, `tables/*.csv` and `figures/*` (SVG and PNG); returns the page's path.

    Everything is made before the first file is written, and each file is replaced atomically.
    """
    report = build_report(results, manifest)
    files = {f"tables/{table.name}.csv": table.csv() for table in report.tables}
    for figure in report.figures:
        files[f"figures/{figure.name}.svg"] = figure.svg
        files[f"figures/{figure.name}.png"] = figure.png
    files["report.html"] = report.html().encode()
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
    except OSError as problem:
        raise BundleError(f"cannot write the report to {folder}: {problem}") from problem
    return folder / "report.html"


def build_report(results: Results, manifest: Mapping[str, Any]) -> Report:
    """The report with all figures and tables; nothing is written yet."""
    errata = tuple(narrative.list_errata(results))
    slices = tuple(Block(tables=(table,)) for table in comparisons.slice_tables(results))
    table_block = partial(_table_block, results)
    with draw.drawing_style():
        selections = (_selection_block(results, n) for n in range(len(results.selections)))
        detectors = (_regime_block(results, n) for n in range(len(results.regimes)))
        scoring = table_block(results.scoring_variants, comparisons.scoring_table)
        published = table_block(results.published, comparisons.published_table)
        sections = (
            Section("candidates", "Models", _candidate_blocks(results)),
            Section("tiers", "Tiers", table_block(results.tiers, comparisons.tiers_table)),
            Section("published", "Published results", published),
            Section("scoring", "Raw or corrected, filtered or smoothed", scoring),
            Section("curves", "Curves", _curve_blocks(results)),
            Section("slices", "New customers and scenarios", slices),
            Section("orders", "Choosing K", tuple(selections)),
            Section("regimes", "Regimes", tuple(detectors)),
            Section("neural", "The neural tier", _neural_blocks(results)),
            Section("differences", "Differences", _difference_blocks(results)),
            Section("errata", "What the errata change", (Block(text=errata),) if errata else ()),
            Section("split", "How the data were split", _split_blocks(results)),
        )
    return Report(results, manifest, tuple(section for section in sections if section.blocks))


def _data_facts(results: Results) -> dict[str, str]:
    if results.data is None:
        return {}
    data = results.data
    return {
        "Source": Path(data.source).name,  # the manifest has the whole path
        "Schema": data.schema,
        "Transactions": show.count(data.n_transactions),
        "Customers": show.count(data.n_customers),
        "Fraud rate": show.percent(data.fraud_rate),
        "Days": show.count(data.n_days),
        "Folds": show.count(results.n_folds),
        "Seeds": ", ".join(map(str, results.seeds)),
    }


def _table_block(
    results: Results, rows: Any, make: Callable[[Results], Table]
) -> tuple[Block, ...]:
    return (Block(tables=(make(results),)),) if rows else ()


def _candidate_blocks(results: Results) -> tuple[Block, ...]:
    if not results.candidates:
        return ()
    figures = (overview_figure(results, metric) for metric in ("average_precision", "ece_mass"))
    main, every = comparisons.candidates_table(results), comparisons.all_metrics_table(results)
    return Block(tables=(main,), folded=(every,)), Block(figures=tuple(figures))


def _curve_blocks(results: Results) -> tuple[Block, ...]:
    panels = curve_panels(results)
    curves = tuple(precision_recall_figure(results, panel) for panel in panels)
    bins = tuple(reliability_figure(results, panel) for panel in panels)
    blocks = (
        Block("Precision and recall", _PRECISION_RECALL, figures=curves),
        Block("Reliability", _RELIABILITY, figures=bins),
    )
    return tuple(block for block in blocks if block.figures)


def _selection_block(results: Results, place: int) -> Block:
    one = results.selections[place]
    eligible, best = (
        "none" if k is None else f"K = {k}" for k in (one.by_eligibility, one.by_criterion)
    )
    used = f"K = {one.used}" if one.is_used else "no"
    facts = (
        ("Used", used, narrative.describe_choice(one.chosen_by)),
        ("By eligibility", eligible, "the rule that looks for one useful fraud regime"),
        ("By criterion", best, "" if one.criterion is None else show.title_of(one.criterion)),
        ("Fraud rate", show.percent(one.base_rate), "of all rows of the part"),
    )
    makers = (
        (one.orders, regimes.orders_table),
        (one.sensitivity, regimes.sensitivity_table),
        (one.stability, regimes.stability_table),
    )
    tables = (make(results, place) for rows, make in makers if rows)
    figures = regimes.criteria_figure(results, place), regimes.diagnostics_figure(results, place)
    return Block(regimes.selection_title(one), (), facts, figures, tuple(tables))


def _regime_block(results: Results, place: int) -> Block:
    table = results.regimes[place]
    makers = (regimes.fraud_rates_figure, regimes.transitions_figure)
    return Block(
        table.detector,
        facts=regimes.regime_facts(table),
        figures=tuple(make(results, place) for make in makers),
        tables=(regimes.regimes_table(results, place),),
        files=(regimes.transitions_table(results, place),),
    )


def _neural_blocks(results: Results) -> tuple[Block, ...]:
    blocks = []
    if results.encoder_trainings:
        n_trainings = len(results.encoder_trainings)
        figures = tuple(training.losses_figure(results, place) for place in range(n_trainings))
        tables, files = (training.trainings_table(results),), (training.losses_table(results),)
        blocks.append(Block("Training", figures=figures, tables=tables, files=files))
    for place in range(len(results.latent_maps)):
        blocks += _latent_blocks(results, place)
    joint = results.joint_training
    if joint is not None:
        makers = (training.occupancy_figure, training.separation_figure, training.counts_figure)
        block = Block(
            "Joint training of encoder and states",
            training.describe_joint_training(joint),
            figures=tuple(make(results, joint) for make in makers),
            tables=(training.joint_table(results, joint),),
            files=(training.cycles_table(results, joint),),
        )
        blocks.append(block)
    return tuple(blocks)


def _latent_blocks(results: Results, place: int) -> list[Block]:
    latents = results.latent_maps[place]
    maps = latent_map.regime_map(results, place), latent_map.label_map(results, place)
    points = (latent_map.points_table(results, place),)
    has_axes = bool(latents.axes)
    test = Block(
        f"One manifold or not, {latents.detector}",
        latent_map.describe_manifold(latents),
        latent_map.manifold_facts(latents),
        tuple(latent_map.axis_figures(results, place)),
        (latent_map.axes_table(results, place),) if has_axes else (),
        files=(latent_map.bins_table(results, place),) if has_axes else (),
    )
    if not latents.x:
        return [test]
    title, caution = f"Map of the latents, {latents.detector}", (latent_map.MAP_CAUTION,)
    return [Block(title, caution, figures=maps, files=points), test]


def _difference_blocks(results: Results) -> tuple[Block, ...]:
    if not results.comparisons:
        return ()
    table = comparisons.comparisons_table(results)
    return (Block(figures=tuple(difference_figures(results)), tables=(table,)),)


def _split_blocks(results: Results) -> tuple[Block, ...]:
    tables = (regimes.parts_table(results),) if results.parts else ()
    return (Block(text=(narrative.describe_split(results.protocol),), tables=tables),)
