"""From scores to results: every candidate on the same test rows, with intervals, slices, curves and what they amount to in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import DAY, PARTS, drop_short_sequences
from turncoat.evaluation.bootstrap import Resamples, bootstrap, wilcoxon_p
from turncoat.evaluation.candidates import CALIBRATORS, ScoreColumn, calibrated
from turncoat.evaluation.enrichment import tier_row
from turncoat.evaluation.folds import CALIBRATION, TEST
from turncoat.evaluation.latents import latent_map
from turncoat.evaluation.metrics import (
    LOSSES,
    METRICS,
    ROW_METRICS,
    ScoredLabels,
    curves,
    mean_of_known,
    measure,
    or_none,
)
from turncoat.evaluation.profiles import regime_table
from turncoat.evaluation.protocols import PUBLISHED
from turncoat.evaluation.results import (
    CandidateResult,
    Comparison,
    Figure,
    LatentMap,
    OrderRow,
    PartRow,
    RegimeTable,
    Results,
    Selection,
    SliceTable,
    TierRow,
    Training,
)
from turncoat.evaluation.settings import NEURAL, NEURAL_ANCHORED
from turncoat.evaluation.slices import by_history, by_scenario
from turncoat.evaluation.study import Study
from turncoat.evaluation.telling import errata, summary, warnings
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.scoring import load

_LEAST_CARDS = (
    200  # a day, for the share of frauds among a hundred of them to tell candidates apart
)
_PAPER_LEAST_ROWS = 5  # the paper judges its models on customers with so many transactions, and its baselines on all


@dataclass(frozen=True, eq=False)
class Evaluator:
    """All columns of scores on the test rows of all folds, and what was drawn from them."""

    studied: Study

    @cached_property
    def columns(self) -> dict[str, ScoreColumn]:
        """Every column, those calibrated afterwards among them."""
        return {column.name: column for column, _ in self._all.values()}

    @cached_property
    def _all(self) -> dict[str, tuple[ScoreColumn, dict[tuple[int, int], Array]]]:
        studied, seeds = self.studied, self.studied.settings.seeds
        runs = [(f, seed) for f in range(len(studied.folds)) for seed in seeds]
        found = {
            c.name: (c, {run: studied.scores(*run, c.name)[TEST] for run in runs})
            for c in studied.columns
        }
        for column in studied.columns:
            for how in self._calibrations(column):
                made = {
                    run: calibrated(
                        column, how, studied.folds[run[0]], studied.scores(*run, column.name)
                    )
                    for run in runs
                }
                described = next(iter(made.values()))[0]
                found[described.name] = (
                    described,
                    {run: scores[TEST] for run, (_, scores) in made.items()},
                )
        return found

    def _calibrations(self, column: ScoreColumn) -> tuple[str, ...]:
        """How a column is calibrated afterwards."""
        if column.name == "XGBoost":
            return tuple(CALIBRATORS)
        return self.studied.settings.calibrations if column.is_main else ()

    def rows(self, fold: int, column: ScoreColumn) -> Array:
        """Places among the test rows that a column is judged on: all, except as the paper did."""
        here = self.studied.folds[fold]
        every = np.arange(len(here.rows(TEST)))
        if self.studied.settings.protocol.name != "paper" or column.tier is None:
            return every
        return np.searchsorted(
            here.rows(TEST),
            drop_short_sequences(
                self.studied.transactions.customer_codes, here.rows(TEST), _PAPER_LEAST_ROWS
            ),
        )

    def judged(self, name: str, seed: int) -> list[ScoredLabels]:
        """A column of scores with the truth beside it, fold by fold."""
        column, scores = self._all[name]
        found = []
        for f, fold in enumerate(self.studied.folds):
            rows = self.rows(f, column)
            test = fold.rows(TEST)[rows]
            days = np.floor(self.studied.transactions.times[test] / DAY).astype(np.int64)
            found.append(
                ScoredLabels(
                    scores[f, seed][rows],
                    fold.labels(TEST)[rows],
                    self.studied.transactions.customer_codes[test],
                    days,
                )
            )
        return found

    @cached_property
    def _groups(self) -> list[list[str]]:
        """Columns that are judged on the same rows: one group, except as the paper did."""
        if self.studied.settings.protocol.name != "paper":
            return [list(self.columns)]
        return [
            [n for n, c in self.columns.items() if (c.tier is None) == alone]
            for alone in (False, True)
        ]

    @cached_property
    def _drawn(self) -> list[tuple[list[str], dict[str, Resamples]]]:
        settings = self.studied.settings
        found = []
        for names in self._groups:
            columns = {
                f"{name}@{seed}": self.judged(name, seed)
                for name in names
                for seed in settings.seeds
            }
            units = {
                unit: bootstrap(
                    columns, unit, n_resamples=settings.n_resamples, seed=settings.seeds[0]
                )
                for unit in ("transaction", "customer")
            }
            found.append((names, units))
        return found

    def _resamples(self, *names: str) -> dict[str, Resamples] | None:
        return next((units for group, units in self._drawn if set(names) <= set(group)), None)

    def _all_seeds(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name}@{seed}" for seed in self.studied.settings.seeds)

    @cached_property
    def candidates(self) -> tuple[CandidateResult, ...]:
        """Every column with its figures."""
        return tuple(self._candidate(name, column) for name, column in self.columns.items())

    def _candidate(self, name: str, column: ScoreColumn) -> CandidateResult:
        seeds = self.studied.settings.seeds
        by_seed = [[measure(judged) for judged in self.judged(name, seed)] for seed in seeds]
        units = self._resamples(name) or {}
        figures = {}
        for metric, about in METRICS.items():
            if (about.needs_probability and not column.is_probability) or (
                metric == "card_precision_100" and not self._has_cards
            ):
                continue
            values = np.array(
                [[figure[metric] for figure in folds] for folds in by_seed]
            )  # [seeds, folds]
            of_seeds = mean_of_known(values, axis=1)
            resampled = metric in ROW_METRICS
            figures[metric] = Figure(
                value=or_none(float(mean_of_known(of_seeds))),
                by_fold=tuple(or_none(float(v)) for v in mean_of_known(values, axis=0)),
                over_seeds=or_none(float(np.std(of_seeds, ddof=1))) if len(seeds) > 1 else None,
                by_transaction=units["transaction"].interval(self._all_seeds(name), metric)
                if resampled
                else None,
                by_customer=units["customer"].interval(self._all_seeds(name), metric)
                if resampled
                else None,
            )
        drawn = curves(ScoredLabels.together(self.judged(name, seeds[0])))
        return CandidateResult(
            name,
            column.family,
            column.tier,
            column.supervision,
            column.mode,
            column.kind,
            column.is_probability,
            figures,
            drawn,
            column.note,
        )

    @cached_property
    def _has_cards(self) -> bool:
        """Whether there are enough customers a day to choose a hundred from."""
        found = []
        for fold in self.studied.folds:
            days = np.floor(self.studied.transactions.times[fold.rows(TEST)] / DAY)
            found.append(
                len(np.unique(np.column_stack([days, fold.customers(TEST)]), axis=0))
                / len(np.unique(days))
            )
        return min(found) >= _LEAST_CARDS

    def comparison(
        self, first: str, second: str, metric: str, headline: str = ""
    ) -> Comparison | None:
        """One column less another; None where one is missing or they are not judged on the same rows."""
        if first not in self.columns or second not in self.columns:
            return None
        units = self._resamples(first, second)
        if units is None:
            return None
        values = {
            c.name: c.figures[metric].value for c in self.candidates if c.name in (first, second)
        }
        both = [
            unit.difference(self._all_seeds(first), self._all_seeds(second), metric)
            for unit in units.values()
        ]
        if values[first] is None or values[second] is None or both[0] is None or both[1] is None:
            return None
        p = None
        if metric in LOSSES:
            seed = self.studied.settings.seeds[0]
            p = wilcoxon_p(
                *(
                    np.concatenate([LOSSES[metric](judged) for judged in self.judged(name, seed)])
                    for name in (first, second)
                )
            )
        difference = values[first] - values[second]  # type: ignore[operator]
        return Comparison(first, second, metric, difference, both[0], both[1], p, headline)


def evaluate(studied: Study, scenarios: Array | None = None) -> Results:
    """Everything that a report shows. `scenarios` [N] names the kind of fraud of each transaction, for a table of its own."""
    whole = Evaluator(studied)
    settings, transactions = studied.settings, studied.transactions
    candidates = whole.candidates
    tables = _regimes(studied)
    selections = _selections(studied)
    comparisons = _comparisons(whole)
    labels = np.asarray(transactions.labels)
    scoring = [f"{tier}, {kind}, {mode}" for tier in settings.tiers for kind, mode in _SCORING]
    return Results(
        title=f"{transactions.schema.name}: {settings.protocol.name} comparison",
        protocol=settings.protocol.name,
        preset=settings.preset,
        summary=summary(studied, candidates),
        data={
            "source": transactions.source,
            "schema": transactions.schema.name,
            "transactions": f"{transactions.n_rows:,}",
            "customers": f"{transactions.n_customers:,}",
            "fraud share": f"{labels.mean():.2%}",
            "days": f"{(transactions.times.max() - transactions.times.min()) / DAY:.0f}",
        },
        split=settings.protocol.in_words,
        parts=_parts(studied),
        n_folds=len(studied.folds),
        seeds=settings.seeds,
        candidates=candidates,
        scoring=tuple(scoring),
        comparisons=comparisons,
        slices=_slices(whole, scenarios),
        selections=selections,
        regimes=tables,
        published=PUBLISHED.get(settings.protocol.name, ()),
        errata=errata(studied, candidates, tables),
        warnings=warnings(studied, candidates, tables, selections),
        tiers=_tiers(whole),
        trainings=_trainings(studied),
        latents=_latents(studied),
        joint=studied.joint,
    )


_HEAD, _RANKED_HEAD = f"{NEURAL}, encoder's head", "regime-calibrated head"
_SCORING = (("raw", "smoothed"), ("corrected", "smoothed"), ("corrected", "filtered"))


def _detectors(studied: Study) -> dict[str, str]:
    """Titles of the detectors by key."""
    settings = studied.settings
    found = {tier: tier for tier in settings.tiers} | {
        "anchored": f"{settings.main_tier}, anchored"
    }
    if NEURAL_ANCHORED in studied.fits[0, settings.seeds[0]]:
        found[NEURAL_ANCHORED] = f"{NEURAL}, anchored"
    return found


def _comparisons(whole: Evaluator) -> tuple[Comparison, ...]:
    tier = whole.studied.settings.main_tier
    ranked, plain = "regime-calibrated XGBoost", f"{tier}, corrected, filtered"
    wanted = [
        (
            "hybrid",
            "XGBoost",
            "average_precision",
            "What the regimes add to XGBoost with the same columns",
        ),
        ("hybrid", "XGBoost", "log_loss", ""),
        (
            ranked,
            "XGBoost, isotonic",
            "log_loss",
            "The ranker inside the regimes against isotonic calibration",
        ),
        (ranked, "XGBoost, isotonic", "ece_mass", "And its calibration error"),
        (ranked, "XGBoost, Platt", "log_loss", ""),
        (ranked, "XGBoost", "average_precision", ""),
        (
            f"{tier}, anchored, corrected, filtered",
            plain,
            "average_precision",
            "What labels in fitting add to the regimes",
        ),
        (plain, "XGBoost", "average_precision", ""),
        (
            plain,
            "Isolation Forest",
            "average_precision",
            "Regimes without labels against Isolation Forest",
        ),
        (
            f"{tier}, corrected, smoothed",
            plain,
            "average_precision",
            "What hindsight would be worth",
        ),
        (
            f"{NEURAL}, corrected, filtered",
            plain,
            "average_precision",
            "What an encoder adds to the regimes",
        ),
        (
            f"{NEURAL}, anchored, corrected, filtered",
            _HEAD,
            "average_precision",
            "The neural regimes against the encoder's own head",
        ),
        (_RANKED_HEAD, _HEAD, "average_precision", "The head inside the regimes against the head"),
        (
            _RANKED_HEAD,
            f"{_HEAD}, isotonic",
            "log_loss",
            "The head inside the regimes against its isotonic calibration",
        ),
        (_RANKED_HEAD, "XGBoost", "average_precision", ""),
        (_RANKED_HEAD, "LSTM", "average_precision", ""),
        ("LSTM", "XGBoost", "average_precision", ""),
    ]
    wanted = [one for one in wanted if one[0] != one[1]]
    return tuple(found for one in wanted if (found := whole.comparison(*one)) is not None)


def _slices(whole: Evaluator, scenarios: Array | None) -> tuple[SliceTable, ...]:
    studied, seed = whole.studied, whole.studied.settings.seeds[0]
    tier = studied.settings.main_tier
    regimes = (
        f"{one}, {score}"
        for one in dict.fromkeys((tier, NEURAL))
        for score in ("corrected, filtered", "anchored, corrected, filtered")
    )
    names = [
        *regimes,
        _HEAD,
        _RANKED_HEAD,
        "LSTM",
        "XGBoost",
        "hybrid",
        "regime-calibrated XGBoost",
    ]
    found = []
    for name in names:
        if name in whole.columns:
            places = [whole.rows(f, whole.columns[name]) for f in range(len(studied.folds))]
            judged = ScoredLabels.together(whole.judged(name, seed))
            seen = np.concatenate(
                [fold.seen[rows] for fold, rows in zip(studied.folds, places, strict=True)]
            )
            found.append(by_history(judged, seen, name))
            if scenarios is not None:
                kinds = np.concatenate(
                    [
                        scenarios[fold.rows(TEST)[rows]]
                        for fold, rows in zip(studied.folds, places, strict=True)
                    ]
                )
                titles = {
                    kind: f"scenario {kind}"
                    for kind in sorted(set(kinds[judged.labels == 1].tolist()))
                }
                found.append(by_scenario(judged, kinds, titles, name))
    return tuple(found)


def _selections(studied: Study) -> tuple[Selection, ...]:
    found = []
    for title, sweep in studied.sweeps.items():
        tier = title.partition(",")[0]
        choice = sweep.choose()
        stability = studied.stabilities.get(title)
        steps = [
            OrderRow(
                step.n_states,
                dict(step.order.criteria),
                step.order.occupancy,
                step.order.rate,
                or_none(step.order.enrichment),
                step.eligible,
                step.kept,
                step.reason,
            )
            for step in choice.trail
        ]
        found.append(
            Selection(
                tier=title,
                features=sweep.features.kind,
                measured=choice.trail[0].order.measured,
                base_rate=choice.trail[0].order.base_rate,
                orders=tuple(steps),
                criterion=choice.criterion,
                by_criterion=choice.by_criterion,
                by_eligibility=choice.by_eligibility,
                used=studied.states[tier],
                why_used=studied.why[tier],
                is_used=title == tier or title == f"{tier}, {studied.latent_dim} latents",
                sensitivity=_plain_rows(sweep.compute_sensitivity().to_dicts()),
                stability=() if stability is None else _plain_rows(stability.frame().to_dicts()),
            )
        )
    return tuple(found)


def _plain_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float | None], ...]:
    return tuple(
        {name: None if value is None else float(value) for name, value in row.items()}
        for row in rows
    )


def _regimes(studied: Study) -> tuple[RegimeTable, ...]:
    """Of the first fold and seed."""
    first = studied.fits[0, studied.settings.seeds[0]]
    found = []
    for key, name in _detectors(studied).items():
        detector = load(first[key].folder / "detector")
        panel, _ = studied.folds[0].panel(CALIBRATION, detector.features_)
        found.append(regime_table(name, detector, panel, first[key].outcome.figures["saturation"]))
    return tuple(found)


def _tiers(whole: Evaluator) -> tuple[TierRow, ...]:
    studied, settings = whole.studied, whole.studied.settings
    found = []
    for key, name in _detectors(studied).items():
        model = load(studied.fits[0, settings.seeds[0]][key].folder / "detector").model_
        memberships = [whole.judged(f"{name}, raw, filtered", seed) for seed in settings.seeds]
        latent_dim = (
            model.encoder_.layout.latent_dim if isinstance(model, NeuralVariationalHMM) else None
        )
        how = {"n_resamples": settings.n_resamples, "seed": settings.seeds[0]}
        found.append(
            tier_row(
                name, f"{name}, corrected, filtered", model.n_states, latent_dim, memberships, **how
            )
        )
    return tuple(found)


def _trainings(studied: Study) -> tuple[Training, ...]:
    """Of the first fold and seed."""
    if NEURAL not in studied.settings.tiers:
        return ()
    model = load(studied.fits[0, studied.settings.seeds[0]][NEURAL].folder / "detector").model_
    report, layout = model.training_, model.encoder_.layout
    losses = report.train_losses, report.validation_losses
    return (
        Training(
            NEURAL,
            layout.latent_dim,
            *losses,
            report.best_epoch,
            report.stopped_early,
            report.class_weight,
        ),
    )


def _latents(studied: Study) -> tuple[LatentMap, ...]:
    """Of the first fold and seed, test rows."""
    if NEURAL not in studied.settings.tiers:
        return ()
    seed, fold = studied.settings.seeds[0], studied.folds[0]
    detector = load(studied.fits[0, seed][NEURAL].folder / "detector")
    panel, places = fold.panel(TEST, detector.features_)
    model = detector.model_
    return (
        latent_map(
            NEURAL,
            "test part of the first fold, first seed, filtered",
            model.encoder_.embed(panel).continuous[places],
            model.filter(panel).probs[places].argmax(axis=1),
            fold.labels(TEST),
            detector.regimes.fraud_state,
            n_states=model.n_states,
            head=model.predict_head_probs(panel)[places],
            seed=seed,
        ),
    )


def _parts(studied: Study) -> tuple[PartRow, ...]:
    found = []
    for part in (*PARTS, "excluded"):
        every = [fold.split.summaries[part] for fold in studied.folds]
        found.append(
            PartRow(
                part,
                sum(s.rows for s in every),
                max(s.customers for s in every),
                sum(s.frauds or 0 for s in every),
            )
        )
    return tuple(found)
