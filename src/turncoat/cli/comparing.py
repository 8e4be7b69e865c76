"""`turncoat compare`, `report` and `demo`: a whole study, and its report."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from rich.console import Console
from typer import Argument, Option, echo

from turncoat.cli import fitting
from turncoat.cli.detectors import CHAMPION_FOLDER
from turncoat.cli.fitting import AUTO, parse_count
from turncoat.cli.output import Json, echo_json
from turncoat.data.schema import LABEL_DELAY_DAYS
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat.data import Transactions
    from turncoat.evaluation.results import Results
    from turncoat.evaluation.settings import StudySettings
    from turncoat.evaluation.summary import Costs

Preset = Literal["quick", "default", "paper"]
Protocol = Literal["matched", "chronological", "paper", "handbook"]

_OUT_HELP = "Folder of the run: report, results, tables, figures, fits. It resumes if unfinished."
_TIERS_HELP = "Models to compare, comma-separated: baum-welch, variational, neural."
_PROTOCOL_HELP = "How data are split. Default: matched, or as the preset."
_PRESET_HELP = "`paper`: the published settings and protocol, and 100 trials for XGBoost."
_STATES_HELP = "Number of regimes. `auto` tries 2 to 10 and picks one by eligibility."
_ANCHORED_HELP = "Regimes of the anchored detector; 0 for as many as the others."
_INCLUDE_HELP = "Features of the hidden Markov models, comma-separated. Default: all."
_LATENT_HELP = "Neural tier: latent width; of several, as 32,64,128, one is chosen."
_EPOCHS_HELP = "Neural tier: maximum training epochs. Default: as in the preset."
_WEIGHTING_HELP = "Neural tier: weigh frauds more in training. Default: as in the preset."
_ABLATION_HELP = "`joint`: also train encoder and states together, to show the effect."
_BASELINES_HELP = "Of logistic,isolation-forest,xgboost,lstm. Default: all; lstm only with neural."
_CALIBRATIONS_HELP = "Calibrations of every model (Platt, isotonic, Venn-Abers); XGBoost has all."
_TRIALS_HELP = "Trials of XGBoost's search. Default: as in the preset."
_SEEDS_HELP = "Comma-separated; the report shows the spread over several seeds."
_CARDS_HELP = "Handbook protocol: keep cards known to be compromised."
_SCENARIO_HELP = "A column with the kind of fraud, for a table; no model sees it."
_REVIEW_HELP = "Cost of reviewing one alert. Default: [costs] in the turncoat.toml, or 5."
_SHARE_HELP = "Share of a caught fraud's amount that is recovered. Default: as before, or 0.7."
_CURRENCY_HELP = "Currency of amounts and costs. Default: as before, or that of the rates, or EUR."
_REFIT_HELP = "Fit the champion again to all but the test part before it is saved."
_MANIFEST_HELP = "The manifest.json of a run to repeat; overrides other options."


def compare(
    data: Annotated[list[Path] | None, Argument(help=fitting.DATA_HELP)] = None,
    config: Annotated[str, Option("--config", help=fitting.FIT_CONFIG_HELP)] = "",
    out: Annotated[Path, Option(help=_OUT_HELP)] = Path("run"),
    tiers: Annotated[str, Option(help=_TIERS_HELP)] = "baum-welch,variational",
    protocol: Annotated[Protocol | None, Option(help=_PROTOCOL_HELP)] = None,
    preset: Annotated[Preset, Option(help=_PRESET_HELP)] = "default",
    states: Annotated[str, Option(help=_STATES_HELP)] = AUTO,
    anchored_states: Annotated[int, Option(help=_ANCHORED_HELP)] = 0,
    fraud_states: Annotated[int, Option(help="Number of fraud states among them.")] = 1,
    include: Annotated[str, Option(help=_INCLUDE_HELP)] = "",
    temperature: Annotated[str, Option(help=fitting.TEMPERATURE_HELP)] = "1",
    latent_dim: Annotated[str, Option(help=_LATENT_HELP)] = "",
    max_epochs: Annotated[int | None, Option(help=_EPOCHS_HELP)] = None,
    class_weighting: Annotated[bool | None, Option(help=_WEIGHTING_HELP)] = None,
    activation: Annotated[fitting.Activation, Option(help=fitting.ACTIVATION_HELP)] = "gelu",
    dropout_draws: Annotated[int, Option(help=fitting.DROPOUT_HELP)] = 0,
    ablation: Annotated[str, Option(help=_ABLATION_HELP)] = "",
    baselines: Annotated[str, Option(help=_BASELINES_HELP)] = "",
    calibrations: Annotated[str, Option(help=_CALIBRATIONS_HELP)] = "isotonic",
    trials: Annotated[int | None, Option(help=_TRIALS_HELP)] = None,
    seeds: Annotated[str, Option(help=_SEEDS_HELP)] = "42",
    resamples: Annotated[int, Option(help="Bootstrap resamples.")] = 1000,
    folds: Annotated[int, Option(help="Test weeks of the handbook protocol.")] = 4,
    all_cards: Annotated[bool, Option("--all-cards", help=_CARDS_HELP)] = False,
    label_delay_days: Annotated[float, Option(help=fitting.DELAY_HELP)] = LABEL_DELAY_DAYS,
    scenario: Annotated[str, Option(help=_SCENARIO_HELP)] = "",
    cost_per_review: Annotated[float | None, Option(help=_REVIEW_HELP)] = None,
    recoverable_share: Annotated[float | None, Option(help=_SHARE_HELP)] = None,
    currency: Annotated[str | None, Option(help=_CURRENCY_HELP)] = None,
    refit: Annotated[bool, Option("--refit", help=_REFIT_HELP)] = False,
    manifest: Annotated[Path | None, Option(help=_MANIFEST_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Compare the tiers with baselines on held-out rows. Writes a report and saves a champion.

    The champion is the detector that `turncoat fit` would choose. `turncoat serve OUT` serves it.

    Examples:
    `turncoat compare payments.csv`
    `turncoat compare exports/ --cost-per-review 8 --currency USD --out run/`
    `turncoat compare payments.csv --refit`
    `turncoat compare months.parquet --config handbook --protocol handbook`
    `turncoat compare payments.csv --tiers variational,neural --ablation joint`
    `turncoat compare ieee-fraud-detection/ --config ieee-cis --preset paper --out paper/`
    `turncoat compare --manifest run/manifest.json --out again/`
    """
    from turncoat.data import read
    from turncoat.evaluation.study import fingerprint_data, load_manifest
    from turncoat.evaluation.summary import Costs

    fingerprint = None
    if manifest is not None:
        content, settings = load_manifest(manifest)
        named = content["source"]  # one path, or several
        sources = data or [Path(name) for name in ([named] if isinstance(named, str) else named)]
        config, scenario = content["schema"], content["scenario"]
        fingerprint = content["data_fingerprint"]
        costs = Costs.from_dict(content.get("costs", {}), str(manifest))
    else:
        config = config or fitting.find_config(data)
        sources = fitting.find_data(data, config)
        fitting.check_include(_split(include), config)
        costs = find_costs(config, cost_per_review, recoverable_share, currency)
        widths = tuple(parse_count("--latent-dim", width) for width in _split(latent_dim))
        optional = {"n_trials": trials, "latent_dims": widths or None, "max_epochs": max_epochs}
        optional["class_weighting"] = class_weighting
        settings = _preset_settings(preset).replace(
            name=protocol or ("paper" if preset == "paper" else "matched"),
            n_folds=folds,
            drop_compromised=not all_cards,
            label_delay_days=label_delay_days,
            tiers=_split(tiers),
            baselines=_split(baselines) or _default_baselines(_split(tiers)),
            calibrations=_split(calibrations),
            states=states if states == AUTO else parse_count("--states", states),
            anchored_states=anchored_states or None,
            n_fraud_states=fraud_states,
            include=_split(include) or None,
            activation=activation,
            dropout_draws=dropout_draws,
            ablations=_split(ablation),
            temperature=fitting.parse_temperature(temperature),
            n_resamples=resamples,
            seeds=tuple(parse_count("--seeds", seed) for seed in _split(seeds)),
            **{name: value for name, value in optional.items() if value is not None},
        )
    if refit and "xgboost" not in settings.baselines:
        problem = (
            f"--refit is of the champion, and the baselines are {', '.join(settings.baselines)}"
        )
        raise ConfigError(f"{problem}. Add xgboost to --baselines, or leave --refit out")
    with Console(stderr=True).status("reading"):
        transactions = read(sources, config)
    if fingerprint is not None and fingerprint_data(transactions) != fingerprint:
        remedy = "Give its data, or start a new run"
        raise DataError(f"{transactions.source}: not the data of {manifest}. {remedy}")
    origin = [str(path) for path in sources], config, scenario
    results = _run_and_report(transactions, settings, out, origin, costs, refit)
    _show_results(results, out, as_json, refit)


def report(
    run: Annotated[Path, Argument(help="Folder of a finished `turncoat compare`.")],
    as_json: Json = False,
) -> None:
    """Write the report of a run again, from its results.json.

    Examples:
    `turncoat report run/`
    """
    from turncoat.evaluation.results import load_results
    from turncoat.evaluation.study import load_manifest
    from turncoat.reporting import write_report

    results = load_results(run / "results.json")
    page = write_report(results, load_manifest(run / "manifest.json")[0], run)
    if as_json:
        echo_json({"report": str(page)})
        return
    echo(page)


def demo(
    out: Annotated[Path, Option(help="Folder of data, run and detector.")] = Path("demo"),
    rows: Annotated[int, Option(help="Simulated transactions.")] = 30_000,
    seed: Annotated[int, Option(help="Seed of the data and of all fits.")] = 42,
    as_json: Json = False,
) -> None:
    """Simulate data, compare all tiers and write a report. Takes a few minutes.

    Examples:
    `turncoat demo`
    `turncoat demo --rows 100000 --out big/`
    """
    from turncoat.data import read
    from turncoat.data.simulators import simulate_files
    from turncoat.evaluation.summary import Costs
    from turncoat.storage import replace_folder

    data = out / f"data-{rows}-{seed}"
    if not data.exists():
        status = Console(stderr=True).status(f"simulating {rows:,} transactions")
        with replace_folder(data, overwrite=False) as new, status:
            simulate_files("ieee-cis", rows, seed, out=new, file_format="parquet", overwrite=True)
    with Console(stderr=True).status("reading"):
        transactions = read(data, "ieee-cis")
    tiers = get_args(fitting.Tier)
    models = {"tiers": tiers, "baselines": _default_baselines(tiers), "ablations": ("joint",)}
    settings = _preset_settings("quick").replace(
        seed=seed, seeds=(seed,), temperature=AUTO, **models
    )
    run = out / f"run-{rows}-{seed}"
    results = _run_and_report(transactions, settings, run, ([str(data)], "ieee-cis", ""), Costs())
    _show_results(results, run, as_json)


def _preset_settings(preset: Preset) -> StudySettings:
    from turncoat.evaluation.settings import StudySettings
    from turncoat.selection.sweep import WIDTHS

    if preset == "quick":
        search = {"orders": (2, 3, 4, 5, 6), "n_trials": 0, "search_rows": 6_000, "n_stability": 3}
        fits = {"n_restarts": 2, "max_iter": 30, "max_lstm_epochs": 5}
        neural = {"latent_dims": (16,), "hidden_dim": 64, "max_epochs": 10, "joint_cycles": 15}
        return StudySettings().replace(preset="quick", **search, **fits, **neural)
    if preset == "paper":
        return StudySettings(preset="paper", n_trials=100, latent_dims=WIDTHS, class_weighting=True)
    return StudySettings()


def _default_baselines(tiers: tuple[str, ...]) -> tuple[str, ...]:
    """All baselines; the LSTM only where torch is needed anyway."""
    from turncoat.evaluation.settings import BASELINES, NEURAL

    return BASELINES if NEURAL in tiers else tuple(name for name in BASELINES if name != "lstm")


def find_costs(
    config: str, per_review: float | None, recoverable_share: float | None, currency: str | None
) -> Costs:
    """Costs from the options, else from `[costs]` of the configuration, else the defaults.

    The currency is that of the amounts, where the schema converts them.
    """
    from turncoat.data.reading import resolve_schema
    from turncoat.data.schema_file import load_table
    from turncoat.evaluation.summary import Costs

    rates = resolve_schema(config).rates
    base = {} if rates is None or rates.base is None else {"currency": rates.base}
    table = load_table(config, "costs") if config.endswith(".toml") else {}
    costs = Costs.from_dict(base | table, f"{config}, [costs]")
    given = {"per_review": per_review, "recoverable_share": recoverable_share, "currency": currency}
    options = {name: value for name, value in given.items() if value is not None}
    found = Costs.from_dict(asdict(costs) | options, "the options")
    if base and found.currency != base["currency"]:
        problem = f"the currency of costs is {found.currency}, that of all amounts"
        remedy = f"Give costs in {base['currency']}, or rates with {found.currency} = 1"
        raise ConfigError(f"{config}: {problem} {base['currency']} (its rate is 1). {remedy}")
    return found


def _run_and_report(
    data: Transactions,
    settings: StudySettings,
    out: Path,
    origin: tuple[list[str], str, str],
    costs: Costs,
    refit: bool = False,
) -> Results:
    """Run the study, evaluate it and write everything; `origin` is sources, schema, scenario."""
    from turncoat.errors import require_extra

    for module in ("jinja2", "matplotlib"):  # before the long work
        require_extra(module, "the report")
    from turncoat.evaluation.evaluator import evaluate
    from turncoat.evaluation.results import save_results
    from turncoat.evaluation.study import build_manifest, run_study
    from turncoat.reporting import write_report
    from turncoat.scoring.bundle import DETECTOR_FORMAT
    from turncoat.storage import replace_file

    DETECTOR_FORMAT.check_target(out / CHAMPION_FOLDER)
    sources, _, scenario = origin
    console = Console(stderr=True)
    scenarios = _read_scenarios(data, sources, scenario) if scenario else None
    try:
        study = run_study(data, settings, out, console)
    except KeyboardInterrupt:
        text = f"stopped; finished fits are kept in {out}, and the same command resumes the run"
        console.print(text, highlight=False, soft_wrap=True)
        raise
    with console.status(f"evaluating, {settings.n_resamples:,} resamples"):
        results = evaluate(study, scenarios, costs)
    manifest = build_manifest(study, *origin, costs)
    save_results(results, out / "results.json")
    replace_file(out / "manifest.json", json.dumps(manifest, indent=1).encode())
    write_report(results, manifest, out)
    champion = study.champion
    if champion is not None:
        if refit:
            with console.status("fitting the champion again to all but the test part"):
                champion = study.refit(champion)
        champion.save(out / CHAMPION_FOLDER)
    return results


def _read_scenarios(transactions: Transactions, sources: list[str], column: str) -> Any:
    """The kind of fraud of every transaction [N], from a column that no model has seen."""
    from turncoat.data.reading import open_for_schema

    found = open_for_schema(sources, transactions.schema)
    name = found.find_column(column)
    if name is None:
        raise ConfigError(f"--scenario is {column!r}, and {found.name} has no such column")
    values = found.frame.select(name).collect().to_series()
    return values.fill_null(0).to_numpy()[transactions.file_rows]


def _show_results(results: Results, out: Path, as_json: bool = False, refit: bool = False) -> None:
    """Print the summary, and the paths of the champion and the report."""
    from turncoat.reporting import narrative
    from turncoat.reporting.terminal import write_summary

    report, summary = out / "report.html", results.summary
    if as_json:
        metrics = {
            one.name: {metric: estimate.value for metric, estimate in one.metrics.items()}
            for one in results.candidates
        }
        content: dict[str, Any] = {"report": str(report), "metrics": metrics}
        content["warnings"] = narrative.list_warnings(results)
        content["champion"] = _summarize_champion(results, out, refit)
        if summary is not None:
            content["alert_budget"] = asdict(summary.budgets[summary.shown_budget])
        echo_json(content)
        return
    for line in write_summary(results):
        echo(line)
    if results.champions:
        fitted = ", fitted again to all but the test part" if refit else ""
        command = shlex.join(["turncoat", "serve", str(out)])
        echo(f"Saved the champion to {out / CHAMPION_FOLDER}{fitted}. Next: {command}")
    echo(report)


def _summarize_champion(results: Results, out: Path, refit: bool) -> dict[str, Any] | None:
    """The saved champion as JSON values: that of the last fold and the first seed."""
    if not results.champions:
        return None
    last = results.champions[-len(results.seeds)]
    gaps = [one for one in results.comparisons if one.topic == "champion"]
    return {
        "out": str(out / CHAMPION_FOLDER),
        "kind": last.choice.chosen.kind,
        "refitted": refit,
        "verdict": results.verdict,
        "differences": {one.second: (one.difference, *one.customer_interval) for one in gaps},
    }


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
