"""The report: which tables and figures it has, in which order, and its files."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from turncoat.errors import BundleError
from turncoat.evaluation.results import Results
from turncoat.reporting import comparisons, first_screen, narrative, pieces, regimes
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting.curves import models_figure, precision_recall_figure, reliability_figure
from turncoat.reporting.drawing import ReportFigure
from turncoat.reporting.first_screen import FirstScreen, build_first_screen
from turncoat.reporting.forest_plots import difference_figures, overview_figure
from turncoat.reporting.paper import latent_map, training
from turncoat.reporting.tables import Table
from turncoat.storage import replace_file

_SCRIPT = Path(__file__).with_name("report.js")
_MAX_CARDS = 6


@dataclass(frozen=True)
class Block:
    """A piece of a section: text, facts, figures and tables, in this order."""

    title: str = ""
    text: tuple[str, ...] = ()
    facts: tuple[tuple[str, str, str], ...] = ()  # name, number, meaning
    figures: tuple[ReportFigure | None, ...] = ()  # None, for nothing to show, is dropped
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()  # shown on demand
    files: tuple[Table, ...] = ()  # written to disk only, because a figure shows them

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", tuple(filter(None, self.figures)))


class Section(NamedTuple):
    """A heading of the page and of its contents."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    is_appendix: bool = True


class Report(NamedTuple):
    """Everything that is written."""

    results: Results
    manifest: Mapping[str, Any]
    first_screen: FirstScreen | None
    sections: tuple[Section, ...]

    @property
    def tables(self) -> list[Table]:
        """All tables in the order of the page."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [table for b in blocks for table in (*b.tables, *b.folded, *b.files)]

    @property
    def figures(self) -> list[ReportFigure]:
        """All figures in the order of the page."""
        first = None if self.first_screen is None else self.first_screen.figure
        blocks = (block for section in self.sections for block in section.blocks)
        figures = (first, *(figure for block in blocks for figure in block.figures))
        return [figure for figure in figures if figure]

    def html(self) -> str:
        """The page."""
        results, manifest = self.results, ""
        if self.manifest:
            manifest = json.dumps(self.manifest, indent=2, ensure_ascii=False, default=str)
        script, cards = _SCRIPT.read_text(encoding="utf-8"), regimes.regime_cards(results)
        measured = {metric for one in results.candidates for metric in one.metrics}
        return show.render(
            "report.html.jinja",
            title=narrative.title_results(results),
            results=results,
            first=self.first_screen,
            summary=results.summary,
            setup=narrative.summarise(results),
            warnings=narrative.divide_warnings(results)[0],
            main=[section for section in self.sections if not section.is_appendix],
            appendix=[section for section in self.sections if section.is_appendix],
            cards=cards[:_MAX_CARDS],
            n_more_cards=len(cards[_MAX_CARDS:]),
            show=show,
            source=narrative.name_source(results),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
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
    errata = narrative.list_errata(results)
    tiers = comparisons.tiers_table(results) if results.tiers else None
    published = comparisons.published_table(results) if results.published else None
    scoring = comparisons.scoring_table(results) if results.scoring_variants else None
    slices = comparisons.slice_tables(results)
    parts = (regimes.parts_table(results),) if results.parts else ()
    cautions = narrative.divide_warnings(results)[1]
    split = Block(text=(narrative.describe_split(results.protocol),), tables=parts)
    with draw.drawing_style():
        selections = (_selection_block(results, n) for n in range(len(results.selections)))
        detectors = (_regime_block(results, n) for n in range(len(results.regimes)))
        differences: tuple[Block, ...] = ()
        if results.comparisons:
            figures, table = difference_figures(results), comparisons.comparisons_table(results)
            headlines = (one for one in results.comparisons if one.topic)
            text = tuple(map(narrative.describe_comparison, headlines))
            differences = (Block(text=text, figures=tuple(figures), tables=(table,)),)
        first = build_first_screen(results)
        main = () if first is None else _model_blocks(results)
        budgets = () if first is None else _budget_blocks(results)
        sections = (
            Section("models", "How the models compare", main, is_appendix=False),
            Section("split", "How the data were split", (split,)),
            Section("budgets", "Every alert budget", budgets),
            Section("champion", "How the champion was chosen", _champion_blocks(results)),
            Section("candidates", "Every model and metric", _candidate_blocks(results)),
            Section("differences", "Differences between models", differences),
            Section("published", "Published results", _table_blocks(published)),
            Section("slices", "New customers and scenarios", _table_blocks(*slices)),
            Section("regimes", "Every regime in numbers", tuple(detectors)),
            Section("tiers", "The fraud regime of each tier", _table_blocks(tiers)),
            Section("orders", "How the number of regimes was chosen", tuple(selections)),
            Section("pieces", "What the pieces of the chains are worth", _piece_blocks(results)),
            Section("scoring", "Raw or corrected, filtered or smoothed", _table_blocks(scoring)),
            Section("neural", "The neural tier", tuple(_neural_blocks(results))),
            Section("cautions", "Cautions about other detectors", _text_blocks(cautions)),
            Section("errata", "What the errata change", _text_blocks(errata)),
        )
    kept = tuple(section for section in sections if section.blocks)
    return Report(results, manifest, first, kept)


def _text_blocks(sentences: tuple[str, ...]) -> tuple[Block, ...]:
    return (Block(text=sentences),) if sentences else ()


def _table_blocks(*tables: Table | None) -> tuple[Block, ...]:
    return tuple(Block(tables=(table,)) for table in tables if table)


def _model_blocks(results: Results) -> tuple[Block, ...]:
    figures = models_figure(results), reliability_figure(results)
    return (Block(tables=(first_screen.models_table(results),), figures=figures),)


def _budget_blocks(results: Results) -> tuple[Block, ...]:
    files = first_screen.list_files(results)
    return (Block(tables=(first_screen.budgets_table(results),), files=files),)


def _champion_blocks(results: Results) -> tuple[Block, ...]:
    if not results.champions:
        return ()
    text, table = narrative.describe_champions(results), comparisons.champions_table(results)
    return (Block(text=text, tables=(table,)),)


def _piece_blocks(results: Results) -> tuple[Block, ...]:
    if results.pieces is None:
        return ()
    text, figures = pieces.describe_pieces(results), tuple(pieces.piece_figures(results))
    return (Block(text=text, figures=figures, tables=(pieces.pieces_table(results),)),)


def _candidate_blocks(results: Results) -> tuple[Block, ...]:
    if not results.candidates:
        return ()
    figures = (overview_figure(results, metric) for metric in ("average_precision", "ece_mass"))
    main, every = comparisons.candidates_table(results), comparisons.all_metrics_table(results)
    curves = precision_recall_figure(results)
    return Block(tables=(main,), folded=(every,)), Block(figures=(curves, *figures))


def _selection_block(results: Results, place: int) -> Block:
    one = results.selections[place]
    answers = one.by_eligibility, one.by_criterion
    eligible, best = ("none" if k is None else f"K = {k}" for k in answers)
    used = f"K = {one.used}" if one.is_used else "no"
    facts = (
        ("Used", used, narrative.CHOSEN_BY.get(one.chosen_by, one.chosen_by)),
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
    figures = regimes.selection_figures(results, place)
    return Block(regimes.selection_title(one), (), facts, figures, tuple(tables))


def _regime_block(results: Results, place: int) -> Block:
    table, rows = results.regimes[place], regimes.regimes_table(results, place)
    figures = regimes.fraud_rates_figure(results, place), regimes.transitions_figure(results, place)
    files = (regimes.transitions_table(results, place),)
    return Block(table.detector, (), regimes.regime_facts(table), figures, (rows,), files=files)


def _neural_blocks(results: Results) -> Iterator[Block]:
    if results.encoder_trainings:
        n_trainings = len(results.encoder_trainings)
        figures = tuple(training.losses_figure(results, place) for place in range(n_trainings))
        tables, files = (training.trainings_table(results),), (training.losses_table(results),)
        yield Block("Training", figures=figures, tables=tables, files=files)
    for place in range(len(results.latent_maps)):
        yield from _latent_blocks(results, place)
    joint = results.joint_training
    if joint is not None:
        text, shown = (
            training.describe_joint_training(joint),
            training.joint_figures(results, joint),
        )
        rows, cycles = training.joint_table(results, joint), training.cycles_table(results, joint)
        title = "Joint training of encoder and states"
        yield Block(title, text, figures=shown, tables=(rows,), files=(cycles,))


def _latent_blocks(results: Results, place: int) -> Iterator[Block]:
    latents = results.latent_maps[place]
    if latents.x:
        maps = latent_map.regime_map(results, place), latent_map.label_map(results, place)
        points = (latent_map.points_table(results, place),)
        title, caution = f"Map of the latents, {latents.detector}", (latent_map.MAP_CAUTION,)
        yield Block(title, caution, figures=maps, files=points)
    tables = (latent_map.axes_table(results, place),) if latents.axes else ()
    files = (latent_map.bins_table(results, place),) if latents.axes else ()
    title, text = f"One manifold or not, {latents.detector}", latent_map.describe_manifold(latents)
    facts, figures = latent_map.manifold_facts(latents), latent_map.axis_figures(results, place)
    yield Block(title, text, facts, tuple(figures), tables, files=files)
