"""`turncoat compare`, `report` and `demo`: a whole study, and its report."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console
from rich.table import Table

from turncoat.cli.fitting import (
    ACTIVATION_HELP,
    AUTO,
    DATA_HELP,
    DROPOUT_HELP,
    Activation,
    Config,
    Tier,
    find_data,
)
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat.data import Transactions
    from turncoat.evaluation.results import CandidateResult, Results
    from turncoat.evaluation.settings import StudySettings

_SHOWN = {
    "average_precision": "AP",
    "auroc": "AUROC",
    "ks": "KS",
    "ece_mass": "ECE",
    "log_loss": "log loss",
    "card_precision_100": "cards@100",
}


class ProtocolName(StrEnum):
    """Ways to split and judge."""

    MATCHED = "matched"
    CHRONOLOGICAL = "chronological"
    PAPER = "paper"
    HANDBOOK = "handbook"


class Preset(StrEnum):
    """How hard to try."""

    QUICK = "quick"
    DEFAULT = "default"
    PAPER = "paper"


def compare(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the run: report.html, results.json, tables, figures, fits. An unfinished run goes on."
        ),
    ],
    config: Config = "ieee-cis",
    data: Annotated[Path | None, typer.Option(help=DATA_HELP)] = None,
    tiers: Annotated[
        str,
        typer.Option(help="Which models, separated by commas: baum-welch, variational, neural."),
    ] = "baum-welch,variational",
    protocol: Annotated[
        ProtocolName | None,
        typer.Option(help="How data are split and judged: matched, unless the preset is `paper`."),
    ] = None,
    preset: Annotated[
        Preset,
        typer.Option(
            help="`paper`: the published settings and protocol, and 100 trials for XGBoost."
        ),
    ] = Preset.DEFAULT,
    states: Annotated[
        str,
        typer.Option(help="Number of regimes, or `auto`: sweep 2 to 10 and choose by eligibility."),
    ] = AUTO,
    anchored_states: Annotated[
        int, typer.Option(help="Regimes of the anchored detector; 0 for as many as the others.")
    ] = 0,
    fraud_states: Annotated[int, typer.Option(help="Of which so many are for fraud.")] = 1,
    include: Annotated[
        str,
        typer.Option(
            help="Features of the hidden Markov models, separated by commas; baselines have all."
        ),
    ] = "",
    temperature: Annotated[
        str,
        typer.Option(
            help="Divides the features' evidence when scoring (docs/scores.md), or `auto`."
        ),
    ] = "1",
    latent_dim: Annotated[
        str,
        typer.Option(
            help="Neural tier: width of the latents; of several, as 32,64,128, one is chosen. By default as the preset."
        ),
    ] = "",
    max_epochs: Annotated[
        int | None,
        typer.Option(help="Neural tier: maximum training epochs. Default: as in the preset."),
    ] = None,
    class_weighting: Annotated[
        bool | None,
        typer.Option(
            help="Neural tier: let frauds weigh more in training, or not; by default only with preset `paper`."
        ),
    ] = None,
    activation: Annotated[Activation, typer.Option(help=ACTIVATION_HELP)] = "gelu",
    dropout_draws: Annotated[int, typer.Option(help=DROPOUT_HELP)] = 0,
    ablation: Annotated[
        str,
        typer.Option(
            help="`joint`: train encoder and states together, too, and show what becomes of them."
        ),
    ] = "",
    baselines: Annotated[
        str,
        typer.Option(
            help="Of logistic, isolation-forest, xgboost, lstm; by default all, lstm only with the neural tier."
        ),
    ] = "",
    calibrations: Annotated[
        str, typer.Option(help="Of every candidate afterwards: Platt, isotonic, Venn-Abers.")
    ] = "isotonic",
    trials: Annotated[
        int | None, typer.Option(help="Trials of XGBoost's search; by default as the preset.")
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(help="One or more, separated by commas: figures show the spread over them."),
    ] = "42",
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.")] = 1000,
    folds: Annotated[int, typer.Option(help="Test weeks of the handbook protocol.")] = 4,
    all_cards: Annotated[
        bool,
        typer.Option("--all-cards", help="Handbook protocol: keep cards known to be compromised."),
    ] = False,
    label_delay_days: Annotated[float, typer.Option(help="Days until a label is known.")] = 7.0,
    scenario: Annotated[
        str,
        typer.Option(
            help="A column of the data that names kinds of fraud, for a table; no model sees it."
        ),
    ] = "",
    manifest: Annotated[
        Path | None,
        typer.Option(
            help="The manifest.json of a run, to make that run again; other options are not used."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results' figures as JSON.")
    ] = False,
) -> None:
    """Compare the tiers with the baselines. All are fitted on the same rows, judged on others, and shown in a report.

    Examples:

    `turncoat compare --config turncoat.toml --out run/`

    `turncoat compare --config handbook --data months.parquet --protocol handbook --states 16 --include TX_AMOUNT,amount_to_mean --out run/`

    `turncoat compare --config turncoat.toml --tiers variational,neural --latent-dim 32,64,128 --ablation joint --out run/`

    `turncoat compare --preset paper --data ieee-fraud-detection/ --out paper/`

    `turncoat compare --manifest run/manifest.json --out again/`
    """
    from turncoat.data import read
    from turncoat.evaluation.manifest import load_manifest
    from turncoat.evaluation.settings import with_changes
    from turncoat.evaluation.study import data_fingerprint

    if manifest is not None:
        made, settings = load_manifest(manifest)
        source, config, scenario = (
            Path(made["source"]) if data is None else data,
            made["schema"],
            made["scenario"],
        )
    else:
        source = find_data(data, config)
        widths = tuple(_whole("--latent-dim", width) for width in _words(latent_dim))
        optional = {
            "n_trials": trials,
            "latent_dims": widths or None,
            "epochs": max_epochs,
            "class_weighting": class_weighting,
        }
        settings = with_changes(
            _preset(preset),
            name=(
                protocol or (ProtocolName.PAPER if preset is Preset.PAPER else ProtocolName.MATCHED)
            ).value,
            n_folds=folds,
            drop_compromised=not all_cards,
            label_delay_days=label_delay_days,
            tiers=_words(tiers),
            baselines=_words(baselines) or _baselines(_words(tiers)),
            calibrations=_words(calibrations),
            states=states if states == AUTO else _whole("--states", states),
            anchored_states=anchored_states or None,
            n_fraud_states=fraud_states,
            include=_words(include) or None,
            activation=activation,
            dropout_draws=dropout_draws,
            ablations=_words(ablation),
            temperature=temperature
            if temperature == AUTO
            else _decimal("--temperature", temperature),
            n_resamples=resamples,
            seeds=tuple(_whole("--seeds", seed) for seed in _words(seeds)),
            **{name: value for name, value in optional.items() if value is not None},
        )
    with Console(stderr=True).status("reading"):
        transactions = read(source, config)
    if manifest is not None and data_fingerprint(transactions) != made["data_fingerprint"]:
        raise DataError(
            f"{source}: not the data of {manifest}. Give those with --data, or make a run of its own"
        )
    results = _study(transactions, settings, out, str(source), config, scenario)
    _show(results, out, as_json)


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a finished `turncoat compare`.")],
) -> None:
    """Make the report of a run again, from its results.json.

    Examples:

    `turncoat report run/`
    """
    from turncoat.evaluation.manifest import load_manifest
    from turncoat.evaluation.results import load_results
    from turncoat.reporting import write_report

    results = load_results(run / "results.json")
    typer.echo(write_report(results, load_manifest(run / "manifest.json")[0], run))


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the data, the run and a saved detector.")
    ] = Path("demo"),
    rows: Annotated[int, typer.Option(help="Simulated transactions.")] = 30_000,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 42,
) -> None:
    """Simulate data, compare all tiers on it and write a report. The data is IEEE-shaped, the baselines are quick ones; a few minutes.

    Examples:

    `turncoat demo`

    `turncoat demo --rows 100000 --out big/`
    """
    from turncoat.data import read, simulators
    from turncoat.evaluation.settings import with_changes
    from turncoat.storage import replace_folder

    data = out / f"data-{rows}-{seed}"
    if not data.exists():
        with (
            replace_folder(data, overwrite=False) as aside,
            Console(stderr=True).status(f"simulating {rows:,} transactions"),
        ):
            simulators.simulate_files(
                "ieee-cis", rows, seed, out=aside, file_format="parquet", overwrite=True
            )
    with Console(stderr=True).status("reading"):
        transactions = read(data, "ieee-cis")
    tiers = get_args(Tier)
    changes = {"tiers": tiers, "baselines": _baselines(tiers), "ablations": ("joint",)}
    settings = with_changes(
        _preset(Preset.QUICK), seed=seed, seeds=(seed,), temperature=AUTO, **changes
    )
    run = out / f"run-{rows}-{seed}"
    results = _study(transactions, settings, run, str(data), "ieee-cis", "")
    detector = run / "fits" / f"fold-1-seed-{seed}" / "anchored" / "detector"
    typer.echo(
        f"a saved detector: {detector}; try turncoat score {detector} {data} --out scores.parquet"
    )
    _show(results, run, as_json=False)


def _preset(preset: Preset) -> StudySettings:
    from turncoat.evaluation.settings import StudySettings
    from turncoat.selection.sweep import WIDTHS

    if preset is Preset.QUICK:
        return StudySettings(
            preset="quick",
            orders=tuple(range(2, 7)),
            n_restarts=2,
            max_iter=30,
            n_trials=0,
            search_rows=6_000,
            n_stability=3,
            latent_dims=(16,),
            hidden_dim=64,
            epochs=10,
            lstm_epochs=5,
            joint_cycles=15,
        )
    if preset is Preset.PAPER:
        return StudySettings(preset="paper", n_trials=100, latent_dims=WIDTHS, class_weighting=True)
    return StudySettings()


def _baselines(tiers: tuple[str, ...]) -> tuple[str, ...]:
    """All of them; the LSTM only where torch is needed anyway."""
    from turncoat.evaluation.settings import BASELINES, NEURAL

    return BASELINES if NEURAL in tiers else tuple(name for name in BASELINES if name != "lstm")


def _study(
    transactions: Transactions,
    settings: StudySettings,
    out: Path,
    source: str,
    schema: str,
    scenario: str,
) -> Results:
    """Run, evaluate and write everything."""
    from turncoat.evaluation.tuning import check_extra

    for module in ("jinja2", "matplotlib"):  # before the long work
        check_extra(module, "the report")
    from turncoat.evaluation.evaluator import evaluate
    from turncoat.evaluation.manifest import manifest_of
    from turncoat.evaluation.results import save_results
    from turncoat.evaluation.study import run_study
    from turncoat.reporting import write_report
    from turncoat.storage import replace_file

    console = Console(stderr=True)
    scenarios = _scenarios(transactions, source, scenario) if scenario else None
    try:
        studied = run_study(transactions, settings, out, console)
    except KeyboardInterrupt:
        console.print(
            f"stopped; what is finished is kept in {out}, and the same command goes on from there",
            highlight=False,
            soft_wrap=True,
        )
        raise
    with console.status(f"judging, {settings.n_resamples:,} resamples"):
        results = evaluate(studied, scenarios)
    manifest = manifest_of(studied, source, schema, scenario)
    save_results(results, out / "results.json")
    replace_file(out / "manifest.json", json.dumps(manifest, indent=1).encode())
    write_report(results, manifest, out)
    return results


def _scenarios(transactions: Transactions, source: str, column: str) -> Any:
    """The kind of fraud of every transaction, from a column that no model has seen."""
    from turncoat.data.sources import open_source

    found = open_source(source)
    if found.find_column(column) is None:
        raise ConfigError(f"--scenario is {column!r}, and {found.name} has no such column")
    values = found.frame.select(str(found.find_column(column))).collect().to_series()
    return values.fill_null(0).to_numpy()[transactions.file_rows]


def _show(results: Results, out: Path, as_json: bool) -> None:
    """Print the main figures, and where the report is."""
    from turncoat.evaluation.telling import headline

    report = out / "report.html"
    if as_json:
        figures = {
            one.name: {metric: figure.value for metric, figure in one.figures.items()}
            for one in results.candidates
        }
        typer.echo(
            json.dumps({"report": str(report), "figures": figures, "warnings": results.warnings})
        )
        return
    table = Table(
        "",
        *_SHOWN.values(),
        title=f"{results.title}: test part, out of sample"
        + (f", mean over {results.n_folds} folds" if results.n_folds > 1 else ""),
    )
    for one in filter(_is_main, results.candidates):
        values = [one.figures[metric].value if metric in one.figures else None for metric in _SHOWN]
        digits = [4 if metric in ("ece_mass", "log_loss") else 3 for metric in _SHOWN]
        table.add_row(
            one.name,
            *(
                "" if value is None else f"{value:.{d}f}"
                for value, d in zip(values, digits, strict=True)
            ),
        )
    for published in results.published:
        cells = [published.figures.get(metric) for metric in _SHOWN]
        table.add_row(
            f"published: {published.name}",
            *("" if value is None else f"{value:.3f}" for value in cells),
            style="dim",
        )
    console = Console()
    console.print(table)
    headlines = (headline(one) for one in results.comparisons if one.headline)
    for line in (
        *results.summary,
        *headlines,
        *(f"Warning: {warning}" for warning in results.warnings),
    ):
        console.print(line, markup=False, highlight=False)
    typer.echo(report)


def _is_main(one: CandidateResult) -> bool:
    """Whether a candidate is what one would use, and not one of its variants, which the report shows."""
    return one.family in ("baseline", "hybrid", "ranker") or (
        one.family,
        one.kind,
        one.mode,
        one.note,
    ) == ("hmm", "corrected", "filtered", "")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _whole(option: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{option} is {text!r}; it must be a whole number")
    return int(text)


def _decimal(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as problem:
        raise ConfigError(f"{option} is {text!r}; it must be a number, or {AUTO}") from problem
