"""From the scores of a study to results: every candidate on the same test rows, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import DAY, PARTS, drop_short_sequences
from turncoat.evaluation import metrics, results
from turncoat.evaluation.bootstrap import UNITS, Resamples, bootstrap, wilcoxon_p
from turncoat.evaluation.candidates import (
    CALIBRATORS,
    CHAMPION,
    ScoreColumn,
    calibrate,
    load_champion_choice,
    measure_saturation,
)
from turncoat.evaluation.metrics import LOSSES, METRICS, ROW_METRICS, ScoredLabels, or_none
from turncoat.evaluation.paper.latent_map import LatentMap, build_latent_map
from turncoat.evaluation.protocols import CALIBRATION, TEST
from turncoat.evaluation.regimes import describe_regimes, measure_tier
from turncoat.evaluation.results import CandidateResult, OrderSelection, RegimeTable, StudyWarning
from turncoat.evaluation.settings import NEURAL
from turncoat.evaluation.study import Study
from turncoat.evaluation.summarising import summarise
from turncoat.evaluation.summary import Costs, Figure, Summary
from turncoat.evaluation.verdict import DETECTOR, XGBOOST, Evaluation
from turncoat.models.neural.model import NeuralVariationalHMM

_MIN_CARDS = 200  # a day; with fewer, the share of frauds among 100 cards says little
_PAPER_MIN_ROWS = 5  # the paper evaluates its models on customers with at least so many rows
_SCORING_VARIANTS = ("raw, smoothed", "corrected, smoothed", "corrected, filtered")
_MAIN, _ANCHORED = "corrected, filtered", "anchored, corrected, filtered"
_HEAD, _RANKED_HEAD = f"{NEURAL}, encoder's head", "regime-calibrated head"
_RANKED = "regime-calibrated XGBoost"
# First, second, metric, topic; {tier} is the main tier, {detector} each detector. Comparisons with
# a topic are headlines.
COMPARISONS = (
    (CHAMPION, "XGBoost", "average_precision", "champion"),
    (CHAMPION, "logistic regression", "average_precision", "champion_logistic"),
    ("{detector}, " + _MAIN, "XGBoost", "average_precision", "regimes"),
    ("{detector}, " + _MAIN, "logistic regression", "average_precision", "regimes_logistic"),
    ("hybrid", "XGBoost", "average_precision", "hybrid"),
    ("hybrid", "XGBoost", "log_loss", ""),
    (_RANKED, "XGBoost, isotonic", "log_loss", "ranker"),
    (_RANKED, "XGBoost, isotonic", "ece_mass", "ranker_calibration"),
    (_RANKED, "XGBoost, Platt", "log_loss", ""),
    (_RANKED, "XGBoost", "average_precision", ""),
    ("{tier}, " + _ANCHORED, "{tier}, " + _MAIN, "average_precision", "anchoring"),
    ("{tier}, " + _MAIN, "Isolation Forest", "average_precision", "unsupervised"),
    ("{tier}, corrected, smoothed", "{tier}, " + _MAIN, "average_precision", "smoothing"),
    (f"{NEURAL}, {_MAIN}", "{tier}, " + _MAIN, "average_precision", "encoder"),
    (f"{NEURAL}, {_ANCHORED}", _HEAD, "average_precision", "neural_regimes"),
    (_RANKED_HEAD, _HEAD, "average_precision", "head_ranker"),
    (_RANKED_HEAD, f"{_HEAD}, isotonic", "log_loss", "head_calibration"),
    (_RANKED_HEAD, "XGBoost", "average_precision", ""),
    (_RANKED_HEAD, "LSTM", "average_precision", ""),
    ("LSTM", "XGBoost", "average_precision", ""),
)
_FEW_FRAUDS = 100
# An equal-mass ECE above this share of the fraud rate is worth a warning, if it is also above so
# many times what chance does to a perfect score; rows of one customer are alike.
_MAX_SATURATION, _MIN_TEMPORAL_SHARE, _MIN_STABILITY = 0.95, 0.01, 0.5


def evaluate(
    study: Study, scenarios: Array | None = None, costs: Costs | None = None
) -> results.Results:
    """Everything that a report shows; `scenarios` [N] names each transaction's kind of fraud."""
    evaluator = Evaluator(study)
    settings, transactions = study.settings, study.transactions
    regimes, selections = tuple(_describe_all_regimes(study)), tuple(_summarise_selections(study))
    variants = (f"{tier}, {score}" for tier in settings.tiers for score in _SCORING_VARIANTS)
    n_days = round((transactions.times.max() - transactions.times.min()) / DAY)
    labels = np.asarray(transactions.labels)
    fraud_rate = float(labels[labels >= 0].mean())
    sizes = transactions.n_rows, transactions.n_customers, fraud_rate, n_days
    comparisons = tuple(_compare_all(evaluator))
    summary = summarise(evaluator, costs or Costs())
    return results.Results(
        protocol=settings.protocol,
        preset=settings.preset,
        data=results.DataSummary(transactions.source, transactions.schema.name, *sizes),
        parts=tuple(_summarise_parts(study)),
        n_folds=len(study.folds),
        seeds=settings.seeds,
        hmm_features=settings.include,
        candidates=evaluator.candidates,
        scoring_variants=tuple(variants),
        comparisons=comparisons,
        slices=tuple(_slice_all(evaluator, scenarios)),
        selections=selections,
        regimes=regimes,
        published=results.PUBLISHED.get(settings.protocol.name, ()),
        warnings=tuple(_find_warnings(study, evaluator.candidates, regimes, selections)),
        tiers=tuple(_measure_tiers(evaluator)),
        encoder_trainings=_summarise_trainings(study),
        latent_maps=_build_latent_maps(study),
        joint_training=study.joint_training,
        pieces=study.pieces,
        champions=tuple(_list_champions(study)),
        verdict=_judge_detector(evaluator, comparisons, summary),
        summary=summary,
        counterparties=transactions.schema.counterparties,
    )


@dataclass(frozen=True, eq=False)
class Evaluator:
    """All columns of scores on the test rows of all folds, and their resamples."""

    study: Study

    @cached_property
    def columns(self) -> dict[str, ScoreColumn]:
        """Every column by name, including those calibrated afterwards."""
        return {name: column for name, (column, _) in self._scores.items()}

    @cached_property
    def _scores(self) -> dict[str, tuple[ScoreColumn, dict[tuple[int, int], Array]]]:
        """Columns with their test scores by fold and seed."""
        study = self.study
        found, calibrated = {}, {}
        for column in study.columns:
            by_run = {run: study.scores(*run, column.name) for run in study.fits}
            found[column.name] = column, {run: parts[TEST] for run, parts in by_run.items()}
            names = study.settings.calibrations if column.is_main else ()
            for name in CALIBRATORS if column.name == "XGBoost" else names:
                own: dict[tuple[int, int], Array] = {}
                for run, parts in by_run.items():
                    made, own[run] = calibrate(column, name, study.folds[run[0]], parts)
                calibrated[made.name] = made, own
        return found | calibrated

    @property
    def is_paper(self) -> bool:
        """Whether HMMs and baselines are evaluated on different rows, as the paper did."""
        return self.study.settings.protocol.name == "paper"

    def rows(self, fold: int, column: ScoreColumn) -> Array:
        """Places among the test rows on which a column is evaluated: rows with a known label."""
        test, is_known = self.study.folds[fold].rows(TEST), self.study.folds[fold].known(TEST)
        if not self.is_paper or column.tier is None:
            return np.flatnonzero(is_known)
        customers = self.study.transactions.customer_codes
        kept = np.searchsorted(test, drop_short_sequences(customers, test, _PAPER_MIN_ROWS))
        return np.asarray(kept[is_known[kept]])

    def scored(self, name: str, seed: int) -> list[ScoredLabels]:
        """A column of scores with its labels, fold by fold."""
        column, scores = self._scores[name]
        transactions, found = self.study.transactions, []
        for f, fold in enumerate(self.study.folds):
            rows = self.rows(f, column)
            test = fold.rows(TEST)[rows]
            days = np.floor(transactions.times[test] / DAY).astype(np.int64)
            labels, customers = fold.labels(TEST)[rows], transactions.customer_codes[test]
            found.append(ScoredLabels(scores[f, seed][rows], labels, customers, days))
        return found

    @cached_property
    def _resamples(self) -> list[tuple[set[str], dict[str, Resamples]]]:
        """Resamples by unit for every group of columns with the same rows."""
        settings = self.study.settings
        groups = [set(self.columns)]
        if self.is_paper:
            baselines = {name for name, column in self.columns.items() if column.tier is None}
            groups = [set(self.columns) - baselines, baselines]
        found = []
        for group in groups:
            pairs = [(n, seed) for n in self.columns if n in group for seed in settings.seeds]
            columns = {f"{name}@{seed}": self.scored(name, seed) for name, seed in pairs}
            options = {"n_resamples": settings.n_resamples, "seed": settings.seeds[0]}
            found.append((group, {unit: bootstrap(columns, unit, **options) for unit in UNITS}))
        return found

    def _find_resamples(self, *names: str) -> dict[str, Resamples] | None:
        return next((units for group, units in self._resamples if set(names) <= group), None)

    def _seed_columns(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name}@{seed}" for seed in self.study.settings.seeds)

    @cached_property
    def candidates(self) -> tuple[CandidateResult, ...]:
        """Every column with its metrics."""
        return tuple(self._evaluate(name, column) for name, column in self.columns.items())

    def _evaluate(self, name: str, column: ScoreColumn) -> CandidateResult:
        seeds = self.study.settings.seeds
        by_seed = [list(map(metrics.measure, self.scored(name, seed))) for seed in seeds]
        estimates = {}
        for metric, about in METRICS.items():
            if about.needs_probability and not column.is_probability:
                continue
            if metric == "card_precision_100" and not self._has_enough_cards:
                continue
            values = np.array([[fold[metric] for fold in folds] for folds in by_seed])
            seed_means = metrics.mean_of_known(values, axis=1)
            spread = float(np.std(seed_means, ddof=1)) if len(seeds) > 1 else np.nan
            units = (self._find_resamples(name) or {}) if metric in ROW_METRICS else {}
            own = self._seed_columns(name)
            found = {unit: one.interval(own, metric) for unit, one in units.items()}
            estimates[metric] = results.MetricEstimate(
                value=or_none(metrics.mean_of_known(seed_means)),
                by_fold=tuple(map(or_none, metrics.mean_of_known(values, axis=0))),
                seed_std=or_none(spread),
                transaction_interval=found.get("transaction"),
                customer_interval=found.get("customer"),
            )
        fields = {key: value for key, value in asdict(column).items() if key != "is_main"}
        curves = metrics.compute_curves(ScoredLabels.concatenate(self.scored(name, seeds[0])))
        return CandidateResult(**fields, metrics=estimates, curves=curves)

    @cached_property
    def _has_enough_cards(self) -> bool:
        """Whether there are enough customers a day to choose a hundred from."""
        counts = []
        for fold in self.study.folds:
            is_known = fold.known(TEST)
            days = np.floor(self.study.transactions.times[fold.rows(TEST)[is_known]] / DAY)
            cards = np.unique(np.column_stack([days, fold.customers(TEST)[is_known]]), axis=0)
            counts.append(len(cards) / len(np.unique(days)))
        return min(counts) >= _MIN_CARDS

    def compare(
        self, first: str, second: str, metric: str, topic: str = ""
    ) -> results.Comparison | None:
        """First column minus second; None if one is missing or they have different rows."""
        units = self._find_resamples(first, second)
        if units is None:
            return None
        columns = self._seed_columns(first), self._seed_columns(second)
        transaction, customer = (units[unit].difference(*columns, metric) for unit in UNITS)
        values = {one.name: one.metrics.get(metric) for one in self.candidates}
        one, two = (found.value if (found := values[name]) else None for name in (first, second))
        if one is None or two is None or transaction is None or customer is None:
            return None
        p = None
        if metric in LOSSES:
            scored = (self.scored(name, self.study.settings.seeds[0]) for name in (first, second))
            p = wilcoxon_p(*(np.concatenate(list(map(LOSSES[metric], folds))) for folds in scored))
        pair = (first, second, metric, one - two)
        return results.Comparison(*pair, transaction, customer, p, topic)


def _compare_all(evaluator: Evaluator) -> Iterator[results.Comparison]:
    settings = evaluator.study.settings
    for *pair, metric, topic in COMPARISONS:
        detectors = settings.detectors.values() if "{detector}" in pair[0] else [""]
        for detector in detectors:
            values = {"tier": settings.main_tier, "detector": detector}
            first, second = (name.format(**values) for name in pair)
            found = evaluator.compare(first, second, metric, topic) if first != second else None
            if found is not None:
                yield found


def _judge_detector(
    evaluator: Evaluator, comparisons: Sequence[results.Comparison], summary: Summary
) -> str:
    """The verdict on the detector to deploy by the rule of `turncoat fit`.

    Without XGBoost it is empty, unless the detector is no better than chance.
    """
    metric, traffic = "average_precision", summary.traffic
    candidate = next(one for one in evaluator.candidates if one.name == summary.detector)
    own = candidate.metrics[metric]
    models = {DETECTOR: {metric: Figure(own.value, own.customer_interval)}}
    gaps = [one for one in comparisons if one.topic == "champion"]
    differences = {XGBOOST: Figure(gaps[0].difference, gaps[0].customer_interval)} if gaps else {}
    size = traffic.n_rows, traffic.n_frauds, traffic.n_customers
    return Evaluation(*size, models, differences).verdict


def _list_champions(study: Study) -> Iterator[results.FoldChampion]:
    for (fold, seed), fits in study.fits.items():
        if CHAMPION in fits:
            choice = load_champion_choice(fits[CHAMPION].folder)
            yield results.FoldChampion(fold + 1, seed, choice)


def _slice_all(evaluator: Evaluator, scenarios: Array | None) -> Iterator[results.SliceTable]:
    study = evaluator.study
    tiers = dict.fromkeys((study.settings.main_tier, NEURAL))
    names = [f"{tier}, {score}" for tier in tiers for score in (_MAIN, _ANCHORED)]
    names += [CHAMPION, _HEAD, _RANKED_HEAD, "LSTM", "XGBoost", "hybrid", _RANKED]
    for name in [name for name in names if name in evaluator.columns]:
        scored = ScoredLabels.concatenate(evaluator.scored(name, study.settings.seeds[0]))
        rows = [evaluator.rows(f, evaluator.columns[name]) for f in range(len(study.folds))]
        folds = list(zip(study.folds, rows, strict=True))
        n_earlier = np.concatenate([fold.n_earlier[own] for fold, own in folds])
        yield metrics.slice_by_history(scored, n_earlier, name)
        if scenarios is not None:
            kinds = np.concatenate([scenarios[fold.rows(TEST)[own]] for fold, own in folds])
            present = np.unique(kinds[scored.labels == 1]).tolist()
            titles = {kind: f"scenario {kind}" for kind in present}
            yield metrics.slice_by_scenario(scored, kinds, titles, name)


def _summarise_selections(study: Study) -> Iterator[OrderSelection]:
    states = study.states
    for title, sweep in states.sweeps.items():
        tier, choice, orders = title.partition(",")[0], sweep.choose(), []
        stability = states.stabilities.get(title)
        for step in choice.trail:
            one = step.order
            measured = (dict(one.criteria), one.occupancy, one.rate, or_none(one.enrichment))
            verdict = (step.eligible, step.kept, step.reason)
            orders.append(results.OrderRow(step.n_states, *measured, *verdict))
        yield OrderSelection(
            tier=title,
            features=sweep.features.kind,
            measured_on=choice.trail[0].order.measured,
            base_rate=choice.trail[0].order.base_rate,
            orders=tuple(orders),
            criterion=choice.criterion,
            by_criterion=choice.by_criterion,
            by_eligibility=choice.by_eligibility,
            used=states.n_states[tier],
            chosen_by=states.chosen_by[tier],
            sensitivity=_plain_rows(sweep.compute_sensitivity().to_dicts()),
            stability=() if stability is None else _plain_rows(stability.frame().to_dicts()),
            is_used=title in (tier, f"{tier}, {states.latent_dim} latents"),
        )


def _plain_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float | None], ...]:
    return tuple({k: None if v is None else float(v) for k, v in row.items()} for row in rows)


def _describe_all_regimes(study: Study) -> Iterator[RegimeTable]:
    """Regimes of the champion of the last fold, and of the detectors of the first; first seed."""
    champion, fold = study.champion, study.folds[-1]
    if champion is not None:
        panel, places = fold.panel(TEST, champion.features_)
        beliefs = champion.model_.filter(panel).probs[places]
        held_out, _ = fold.panel(CALIBRATION, champion.features_)
        yield describe_regimes(CHAMPION, champion, held_out, measure_saturation(beliefs))
    for key, title in study.settings.detectors.items():
        fit = study.first_fits[key]
        detector, saturation = fit.detector, fit.outcome.figures["saturation"]
        panel, _ = study.folds[0].panel(CALIBRATION, detector.features_)
        yield describe_regimes(title, detector, panel, saturation)


def _measure_tiers(evaluator: Evaluator) -> Iterator[results.TierRow]:
    study, settings = evaluator.study, evaluator.study.settings
    for key, title in settings.detectors.items():
        model = study.first_fits[key].detector.model_
        is_neural = isinstance(model, NeuralVariationalHMM)
        width = model.encoder_.layout.latent_dim if is_neural else None
        chosen_by = study.states.chosen_by[title.partition(",")[0]]
        about = title, f"{title}, {_MAIN}", model.n_states, chosen_by, width
        raw = [evaluator.scored(f"{title}, raw, filtered", seed) for seed in settings.seeds]
        n_resamples, seed = settings.n_resamples, settings.seeds[0]
        yield measure_tier(*about, raw, n_resamples=n_resamples, seed=seed)


def _summarise_trainings(study: Study) -> tuple[results.EncoderTraining, ...]:
    """The encoder's training on the first fold and seed."""
    if NEURAL not in study.settings.tiers:
        return ()
    model = study.first_fits[NEURAL].detector.model_
    report, width = model.training_, model.encoder_.layout.latent_dim
    names = ("train_losses", "validation_losses", "best_epoch", "stopped_early", "class_weight")
    return (results.EncoderTraining(NEURAL, width, *(getattr(report, name) for name in names)),)


def _build_latent_maps(study: Study) -> tuple[LatentMap, ...]:
    """A map of the test rows of the first fold and seed."""
    if NEURAL not in study.settings.tiers:
        return ()
    fold, detector = study.folds[0], study.first_fits[NEURAL].detector
    panel, places = fold.panel(TEST, detector.features_)
    is_known, model = fold.known(TEST), detector.model_
    places = places[is_known]
    latents = model.encoder_.embed(panel).continuous[places]
    regimes = model.filter(panel).probs[places].argmax(axis=1)
    rows = latents, regimes, fold.labels(TEST)[is_known], detector.regimes.fraud_state
    head, seed = model.predict_head_probs(panel)[places], study.settings.seeds[0]
    return (build_latent_map(NEURAL, *rows, n_states=model.n_states, head=head, seed=seed),)


def _summarise_parts(study: Study) -> Iterator[results.SplitPart]:
    for part in (*PARTS, "excluded"):
        folds = [fold.split.summaries[part] for fold in study.folds]
        n_rows, n_frauds = sum(one.rows for one in folds), sum(one.frauds or 0 for one in folds)
        counts = n_rows, max(one.customers for one in folds), n_frauds
        n_labelled = sum(one.labelled or 0 for one in folds)
        yield results.SplitPart(part, *counts, n_rows - n_labelled)


def _find_warnings(
    study: Study,
    candidates: Sequence[CandidateResult],
    regimes: Sequence[RegimeTable],
    selections: Sequence[OrderSelection],
) -> Iterator[StudyWarning]:
    """Reasons to distrust some results."""
    for part in (CALIBRATION, TEST):
        n_frauds = min(int((fold.labels(part) == 1).sum()) for fold in study.folds)
        if n_frauds < _FEW_FRAUDS:
            yield StudyWarning("few_frauds", part, {"n_frauds": n_frauds})
    rates = [fold.labels(TEST)[fold.known(TEST)].mean() for fold in study.folds]
    rate = float(np.mean(rates))
    for one in candidates:
        ece = one.metrics["ece_mass"].value if "ece_mass" in one.metrics else None
        limit = metrics.find_ece_limit(one.curves, rate)
        if one.is_probability and ece is not None and ece > limit:
            yield StudyWarning("miscalibrated", one.name, {"ece": ece, "fraud_rate": rate})
    for table in regimes:
        if table.saturation > _MAX_SATURATION:
            yield StudyWarning("saturated", table.detector, {"saturation": table.saturation})
        if (temporal_share := table.temporal_share) < _MIN_TEMPORAL_SHARE:
            yield StudyWarning("no_sequence", table.detector, {"temporal_share": temporal_share})
    for selection in selections:
        chosen, tier = selection.by_eligibility, selection.tier
        stability = {row["n_states"]: row["by_eligibility"] for row in selection.stability}
        share = stability.get(chosen)
        if selection.is_used and chosen is None:
            yield StudyWarning("no_eligible_order", tier, {"n_states": selection.used})
        elif selection.is_used and chosen and share is not None and share < _MIN_STABILITY:
            yield StudyWarning("unstable_order", tier, {"n_states": chosen, "share": share})
    if study.settings.protocol.name == "paper":
        yield StudyWarning("different_rows", "paper", {})
