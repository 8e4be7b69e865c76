"""Sentences about results: summary, headlines, warnings, errata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.protocols import SplitProtocol
from turncoat.evaluation.results import (
    CandidateResult,
    ChampionChoice,
    Comparison,
    RegimeTrait,
    Results,
)
from turncoat.evaluation.summary import Summary
from turncoat.evaluation.verdict import XGBOOST, describe_verdict
from turncoat.reporting import formatting as show

TOPICS = {
    "champion": "Champion vs. XGBoost",
    "champion_logistic": "Champion vs. logistic regression",
    "regimes": "Regimes alone vs. XGBoost",
    "regimes_logistic": "Regimes alone vs. logistic regression",
    "hybrid": "Hybrid vs. XGBoost on the same features",
    "ranker": "XGBoost inside the regimes vs. isotonic calibration",
    "ranker_calibration": "Calibration error of XGBoost inside the regimes vs. isotonic",
    "anchoring": "Regimes fitted with labels vs. without",
    "unsupervised": "Regimes without labels vs. Isolation Forest",
    "smoothing": "Scores with hindsight vs. scores at the time",
    "encoder": "Neural regimes vs. regimes without an encoder",
    "neural_regimes": "Neural regimes vs. the encoder's own head",
    "head_ranker": "The head inside the regimes vs. the head alone",
    "head_calibration": "The head inside the regimes vs. its isotonic calibration",
}
_WARNINGS = {
    "few_frauds": "The {subject} part has only {n_frauds:.0f} frauds{fold}: metrics are rough.",
    "saturated": "{subject}: {saturation:.0%} of test beliefs are above 0.999. The posteriors are "
    "saturated; try fewer features or temperature auto.",
    "miscalibrated": "Not calibrated, by equal-mass ECE at a fraud rate of {fraud_rate:.4f}: "
    "{shown}.",
    "no_sequence": "{subject}: temporal share {temporal_share:.2%}. The sequence adds almost "
    "nothing.",
    "no_eligible_order": "{subject}: no number of regimes is eligible; {n_states:.0f} were used.",
    "unstable_order": "{subject}: K = {n_states:.0f} is not stable: only {share:.0%} of the "
    "resamples of customers chose it.",
    "different_rows": "The paper's protocol does not compare on the same rows: it evaluates its "
    "models on customers with 5 transactions or more.",
}
CHOSEN_BY = {  # how a number of states was chosen
    "given": "given",
    "eligibility": "chosen by eligibility",
    "fallback": "the fallback, because no number is eligible",
}
_KINDS = {
    "regimes": "the fraud rates of its regimes alone",
    "chains": "the causes of fraud (intruder, compromised counterparty, the transaction by "
    "itself), calibrated inside its regimes",
    "ranker": "boosted trees on the features, calibrated inside its regimes",
    "hybrid": "boosted trees that see the customer's path too, calibrated inside its regimes",
    "chains+trees": "the causes of fraud, corrected by boosted trees and calibrated inside its "
    "regimes",
}
_MAX_WEIGHTS = 8  # of a sentence


def title_results(results: Results) -> str:
    """The title of a report."""
    return f"{results.data.schema if results.data else 'Study'}: {results.protocol.name} comparison"


def name_model(one: CandidateResult) -> str:
    """A model in plain words; a variant that is only for study keeps its name."""
    if one.family == "hmm" and (one.kind, one.mode, one.note) == ("corrected", "filtered", ""):
        labels = " with labels" if one.supervision == "anchored" else ""
        tier = "Baum-Welch" if one.tier == "baum-welch" else one.tier
        return f"{tier} regimes{labels}"
    return one.name


def state_verdict(results: Results) -> tuple[str, ...]:
    """Whether to use the detector, and the numbers behind it; the first sentence concludes."""
    summary = results.summary
    if summary is None:
        return (title_results(results),)
    by_name = {one.name: one for one in results.candidates}
    name = name_model(by_name[summary.detector])
    sentences = list(describe_verdict(results.verdict, name))
    if not sentences:
        missing = "XGBoost was not compared" if XGBOOST not in by_name else "too few frauds"
        sentences.append(f"No verdict on the {name}: {missing}.")
    return (*sentences, *_describe_evidence(results, summary, by_name))


def _describe_evidence(
    results: Results, summary: Summary, by_name: Mapping[str, CandidateResult]
) -> Iterator[str]:
    """What the verdict is based on, beside XGBoost."""
    budget = summary.budgets[summary.shown_budget]
    alerts = show.significant(budget.alerts_per_day)
    frauds, others = budget.frauds_per_month.value, summary.find_budgets(XGBOOST)
    total = show.tally(summary.traffic.frauds_per_month)
    caught = f"it catches {show.tally(frauds)} of {total} frauds a month"
    if others and summary.detector != XGBOOST:
        other = others[summary.shown_budget].frauds_per_month.value
        caught += f", XGBoost {show.tally(other)}"
    yield f"With {alerts} alerts a day {caught}."
    precision = by_name[summary.detector].metrics["average_precision"]
    gap = next((one for one in results.comparisons if one.topic == "champion"), None)
    own = f"Average precision is {show.number(precision.value)}"
    if gap is None:
        yield f"{own} ({show.show_range(precision.customer_interval, show.number)})."
    else:
        other = by_name[XGBOOST].metrics["average_precision"].value
        interval = show.show_range(gap.customer_interval, partial(show.signed, decimals=3))
        difference = f"difference {show.signed(gap.difference, 3)}, {interval}"
        yield f"{own}, XGBoost's {show.number(other)} ({difference})."


def describe_rows(results: Results) -> str:
    """What the numbers of the first screen were measured on."""
    assert results.summary is not None
    traffic = results.summary.traffic
    size = f"{traffic.n_rows:,} held-out transactions of {traffic.n_customers:,} customers"
    return f"Test part: {size}, {traffic.n_frauds:,} of them fraud; filtered scores"


def describe_split(protocol: SplitProtocol) -> str:
    """How the parts were made."""
    delay = f"{protocol.label_delay_days:g} days"
    if protocol.name in ("matched", "paper"):
        return f"Customers are split at random (seed {protocol.seed}); each is in one part only."
    if protocol.name == "chronological":
        return f"Parts follow each other in time, with a label delay of {delay} between them."
    cards = "Cards known to be compromised are left out."
    cards = cards if protocol.drop_compromised else "All cards are kept."
    train = f"{protocol.train_days:g} days of training"
    weeks = f"Prequential: {protocol.n_folds} test weeks, each after {train}"
    last = "the last two weeks for selection and calibration"
    return f"{weeks} ({last}) and a label delay of {delay}. {cards}"


def summarise(results: Results) -> tuple[str, ...]:
    """What was evaluated, on which rows and with which features."""
    test = next((part for part in results.parts if part.part == "test"), None)
    if test is None:
        return ()
    rows = "All models are evaluated on the same rows."
    if results.protocol.name == "paper":
        hmms = "hidden Markov models on customers with 5 transactions or more"
        rows = f"Baselines are evaluated on all of them, {hmms}."
    features = "Features use neither the row's own label nor the future."
    if results.hmm_features:
        features += f" The hidden Markov models have {show.join_words(results.hmm_features)}."
    held_out = f"{test.n_rows:,} held-out transactions, {test.n_frauds:,} of them fraud"
    if test.n_unlabelled:
        held_out += f" and {test.n_unlabelled:,} left out because their label is unknown"
    split = describe_split(results.protocol)
    return f"Evaluated on {held_out}. {split}", f"{rows} {features}"


def describe_comparison(one: Comparison) -> str:
    """A headline comparison as a sentence."""
    return (
        f"{TOPICS.get(one.topic, one.topic)}: {describe_difference(one)} {_describe_interval(one)}."
    )


def describe_difference(one: Comparison) -> str:
    """How far the first candidate is above or below the second."""
    side = "level with"
    if one.difference:
        size = show.number(abs(one.difference), 4)
        side = f"{size} above" if one.difference > 0 else f"{size} below"
    return f"{one.first} is {side} {one.second}"


def describe_champions(results: Results) -> tuple[str, ...]:
    """What was chosen on each fold and why, and the verdict on it."""
    sentences = []
    for fold, seed, choice in ((c.fold, c.seed, c.choice) for c in results.champions):
        where = f", fold {fold}, seed {seed}" if len(results.champions) > 1 else ""
        kind = choice.chosen.kind
        about = f"Champion{where}: {kind}, scores by {_KINDS.get(kind, kind)}"
        sentences.append(f"{about}. {_describe_chain(choice)}")
    if results.champions:
        sentences.append(
            "The choice is made on the selection part: the simplest kind whose average precision "
            "and log loss are within one standard error of the best, by customer."
        )
    for one in (one for one in results.comparisons if one.topic == "champion"):
        verdict = " ".join(describe_verdict(results.verdict, "champion")) or results.verdict
        difference = f"{describe_difference(one)} {_describe_interval(one)}"
        sentences.append(f"Verdict on test rows: {verdict} The {difference}.")
    return tuple(sentences)


def _describe_interval(one: Comparison) -> str:
    """The metric of a difference and its interval, in brackets."""
    low, high = one.customer_interval
    zero = "excludes zero" if low > 0 or high < 0 else "includes zero"
    title = METRICS[one.metric].title if one.metric in METRICS else one.metric
    better = f"{show.metric_text(one.metric).better} is better"
    interval = f"90 % interval over customers {low:+.4f} to {high:+.4f}, {zero}"
    return f"({title}, {better}; {interval})"


def describe_kind(results: Results) -> str:
    """What the saved champion scores by: that of the last fold and the first seed."""
    kind = results.champions[-len(results.seeds)].choice.chosen.kind
    return _KINDS.get(kind, kind)


def _describe_chain(choice: ChampionChoice) -> str:
    """What the chain of a champion sees."""
    if not choice.n_fraud_states:
        chain = f"Its chain has {choice.n_states} regimes on {choice.chosen.chain}"
        return f"{chain}, fitted without labels."
    weights = list(choice.evidence_weights.items())
    shown = [f"{name} {show.number(weight, 2)}" for name, weight in weights[:_MAX_WEIGHTS]]
    shown += [f"{len(weights) - _MAX_WEIGHTS} more"] if len(weights) > _MAX_WEIGHTS else []
    states = f"{choice.n_states} regimes, {choice.n_fraud_states} of them for fraud"
    tried = "1 chain" if len(choice.chains) == 1 else f"{len(choice.chains)} chains"
    chain = f"Its chain has {states}, after a search of {tried}"
    return f"{chain}. Evidence weights: {show.join_words(shown)}."


def list_warnings(results: Results, *codes: str) -> tuple[str, ...]:
    """What to be careful about, or only some of it; miscalibrated candidates share one sentence."""
    fold = " in one fold" if results.n_folds > 1 else ""
    sentences, loose = [], [one for one in results.warnings if one.code == "miscalibrated"]
    for one in (one for one in results.warnings if one.code in codes or not codes):
        values = {"subject": one.subject, "fold": fold, **one.values}
        if one.code == "miscalibrated":
            values["shown"] = "; ".join(f"{o.subject} ({o.values['ece']:.4f})" for o in loose)
        if one.code != "miscalibrated" or one is loose[0]:
            sentences.append(_WARNINGS.get(one.code, "{subject}").format(**values))
    return tuple(sentences)


def list_errata(results: Results) -> tuple[str, ...]:
    """What the corrections to the paper (docs/errata.md) change here."""
    by_name = {one.name: one for one in results.candidates}

    def value(name: str, metric: str) -> float | None:
        estimate = by_name[name].metrics.get(metric) if name in by_name else None
        return None if estimate is None else estimate.value

    tiers = []
    for table in results.regimes:
        tier, raw = table.detector, by_name.get(f"{table.detector}, raw, filtered")
        if raw is not None and raw.supervision == "none":
            scores = ("in-sample rates", "corrected, filtered")
            losses = (value(f"{tier}, {score}", "log_loss") for score in scores)
            scores = ("corrected, smoothed", "corrected, filtered")
            precisions = (value(f"{tier}, {score}", "average_precision") for score in scores)
            tiers.append((table, *losses, *precisions))
    return tuple(show.render("errata.txt.jinja", tiers=tiers).splitlines())


def describe_trait(trait: RegimeTrait) -> str:
    """A feature that sets a regime apart, with its numbers."""
    if trait.category is not None:
        overall = "" if trait.overall is None else f" vs. {trait.overall:.0%} overall"
        return f"{trait.feature} is {trait.category}: {trait.value:.0%}{overall}"
    return f"{trait.feature}: {_place_trait(trait)} ({trait.value:+.1f} SD)"


def word_trait(trait: RegimeTrait) -> str:
    """A feature that sets a regime apart, in plain words."""
    if trait.category is None:
        return f"{show.name_feature(trait.feature)} {_place_trait(trait)}"
    is_flag = trait.category in ("yes", "no")
    what = show.name_feature(trait.feature)
    what = f"{what}: {trait.category}" if is_flag else f"{what} is {trait.category}"
    overall = "" if trait.overall is None else f", {show.share(trait.overall)} overall"
    return f"{what} in {show.share(trait.value)}{overall}"


def _place_trait(trait: RegimeTrait) -> str:
    size = abs(trait.value)
    degree = "far " if size >= 2 else "" if size >= 1 else "somewhat "
    return f"{degree}{'above' if trait.value > 0 else 'below'} average"
