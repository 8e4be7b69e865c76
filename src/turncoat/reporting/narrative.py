"""Sentences about results: summary, headlines, warnings, errata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath

from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.protocols import SplitProtocol
from turncoat.evaluation.results import (
    CandidateResult,
    ChampionChoice,
    Comparison,
    RegimeTrait,
    Results,
    StudyWarning,
)
from turncoat.evaluation.summary import Summary
from turncoat.evaluation.verdict import XGBOOST, describe_verdict
from turncoat.reporting import formatting as show
from turncoat.reporting.feature_words import name_feature, name_with_identifier

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
    "few_frauds": "{shown}{fold}: all numbers are rough.",
    "saturated": "{subject}: the model is almost certain of one regime in {saturation} of test "
    "transactions. Try fewer features (--include), or --temperature auto.",
    "miscalibrated": "Do not take these scores at face value as probabilities: {shown}. In "
    "brackets: how far they are off on average, where {fraud_rate} of transactions are fraud.",
    "no_sequence": "{subject}: the order of a customer's transactions adds almost nothing "
    "(temporal share {temporal_share}).",
    "no_eligible_order": "{subject}: no number of regimes gives one useful fraud regime; "
    "{n_states} were used.",
    "unstable_order": "{subject}: the number of regimes, {n_states}, is uncertain: {share} of the "
    "resamples of customers chose it.",
    "different_rows": "The paper's protocol does not compare on the same rows: it evaluates its "
    "models on customers with 5 transactions or more.",
}
_OF_DETECTORS = ("saturated", "no_sequence", "no_eligible_order", "unstable_order")
CHOSEN_BY = {  # how a number of states was chosen
    "given": "given",
    "eligibility": "chosen by eligibility",
    "fallback": "the fallback, because no number is eligible",
}
_KINDS = {
    "regimes": "the fraud rates of its regimes, kinds of behaviour that it learnt, alone",
    "chains": "the causes of fraud (intruder, compromised counterparty, the transaction by "
    "itself), calibrated inside its regimes",
    "ranker": "boosted trees, calibrated inside its regimes",
    "hybrid": "boosted trees that see the customer's path too, calibrated inside its regimes",
    "chains+trees": "the causes of fraud, corrected by boosted trees and calibrated inside its "
    "regimes",
}
_MAX_WEIGHTS = 8  # of a sentence


def title_results(results: Results) -> str:
    """The title of a report."""
    return f"Fraud detectors compared on {name_source(results)}"


def name_source(results: Results) -> str:
    """The file or the folder of the data, without its path."""
    return PurePath(results.data.source).name if results.data else "one data set"


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
    detector = by_name[summary.detector]
    name = name_model(detector)
    name = name if detector.family == "champion" else f"detector ({name})"
    sentences = list(describe_verdict(results.verdict, name))
    if not sentences:
        missing = "XGBoost was not compared" if XGBOOST not in by_name else "too few frauds"
        sentences.append(f"No verdict on the {name}: {missing}.")
    sentences += _describe_evidence(results, summary, by_name)
    if detector.family == "champion" and results.champions:
        about = "the detector that Turncoat chose for these data, scores by"
        sentences.append(f"The champion, {about} {describe_kind(results)}.")
    return tuple(sentences)


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
    own = f"Over all budgets, average precision is {show.number(precision.value)}"
    if gap is None:
        yield f"{own} (90 % interval {show.show_range(precision.customer_interval, show.number)})."
    else:
        other = by_name[XGBOOST].metrics["average_precision"].value
        interval = show.show_range(gap.customer_interval, partial(show.signed, decimals=3))
        difference = f"difference {show.signed(gap.difference, 3)}, 90 % interval {interval}"
        yield f"{own}, XGBoost's {show.number(other)} ({difference})."


def describe_rows(results: Results) -> str:
    """What the numbers of the first screen were measured on."""
    assert results.summary is not None
    traffic = results.summary.traffic
    size = f"{traffic.n_customers:,} customers, {traffic.n_frauds:,} frauds"
    return f"Measured on {traffic.n_rows:,} transactions that no model has seen: {size}"


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
        names = [name_with_identifier(one, results.counterparties) for one in results.hmm_features]
        features += f" The hidden Markov models have {show.join_words(names)}."
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
        sentences.append(f"{about}. {_describe_chain(choice, results.counterparties)}")
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


def _describe_chain(choice: ChampionChoice, counterparties: Sequence[str]) -> str:
    """What the chain of a champion sees."""
    if not choice.n_fraud_states:
        chain = f"Its chain has {choice.n_states} regimes on {choice.chosen.chain}"
        return f"{chain}, fitted without labels."
    weights = list(choice.evidence_weights.items())
    shown = [
        f"{name_with_identifier(name, counterparties)} {show.number(weight, 2)}"
        for name, weight in weights[:_MAX_WEIGHTS]
    ]
    shown += [f"{len(weights) - _MAX_WEIGHTS} more"] if len(weights) > _MAX_WEIGHTS else []
    states = f"{choice.n_states} regimes, {choice.n_fraud_states} of them for fraud"
    tried = "1 chain" if len(choice.chains) == 1 else f"{len(choice.chains)} chains"
    chain = f"Its chain has {states}, after a search of {tried}"
    return f"{chain}. Evidence weights: {show.join_words(shown)}."


def list_warnings(results: Results, *codes: str) -> tuple[str, ...]:
    """What to be careful about, or only some of it; warnings of some codes share a sentence."""
    fold = " in one fold" if results.n_folds > 1 else ""
    sentences: dict[str | int, str] = {}
    joined = {"few_frauds": _list_few_frauds, "miscalibrated": _list_miscalibrated}
    for place, one in enumerate(results.warnings):
        if codes and one.code not in codes:
            continue
        values = {  # counts or shares
            name: show.count(value) if name.startswith("n_") else show.share(value)
            for name, value in one.values.items()
        }
        values |= {"subject": show.title_of(one.subject), "fold": fold}
        if one.code in joined:
            same = [other for other in results.warnings if other.code == one.code]
            values["shown"] = joined[one.code](results, same)
        key = one.code if one.code in joined else place
        sentences.setdefault(key, _WARNINGS.get(one.code, "{subject}").format(**values))
    return tuple(sentences.values())


def divide_warnings(results: Results) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What to be careful about if one deploys the detector, and what only concerns others."""
    deployed = None if results.summary is None else results.summary.detector
    others = tuple(
        one
        for one in results.warnings
        if deployed and one.code in _OF_DETECTORS and not deployed.startswith(one.subject)
    )
    own = tuple(one for one in results.warnings if one not in others)
    own_texts, other_texts = (
        list_warnings(replace(results, warnings=some)) for some in (own, others)
    )
    return own_texts, other_texts


def _list_few_frauds(_: Results, few: Sequence[StudyWarning]) -> str:
    parts = (f"{show.count(one.values['n_frauds'])} in the {one.subject} part" for one in few)
    return f"There are few frauds, {show.join_words(parts)}"


def _list_miscalibrated(results: Results, loose: Sequence[StudyWarning]) -> str:
    """Miscalibrated models with their errors; variants that one would not use are counted."""
    names = {one.name: name_model(one) for one in results.candidates}
    used = {one.subject for one in loose}
    if results.summary is not None:
        used &= {one.candidate for one in results.summary.curves}
    shown = [
        f"{names.get(one.subject, one.subject)} ({show.share(one.values['ece'])})"
        for one in loose
        if one.subject in used
    ]
    if n_others := len(loose) - len(shown):
        others = "variant" if n_others == 1 else "variants"
        shown.append(f"{n_others} {others} in the appendix")
    return show.join_words(shown)


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


def describe_trait(trait: RegimeTrait, counterparties: Sequence[str] = ()) -> str:
    """A feature that sets a regime apart, with its name and its numbers."""
    what = name_with_identifier(trait.feature, counterparties)
    if trait.category is None:
        return f"{what}: {_place_trait(trait)} ({trait.value:+.1f} SD)"
    overall = "" if trait.overall is None else f" vs. {trait.overall:.0%} overall"
    is_flag = trait.category in ("yes", "no")
    what = f"{what}: {trait.category} in" if is_flag else f"{what} is {trait.category}:"
    return f"{what} {trait.value:.0%}{overall}"


def word_trait(trait: RegimeTrait, counterparties: Sequence[str] = ()) -> str:
    """A feature that sets a regime apart, in plain words."""
    what = name_feature(trait.feature, counterparties)
    if trait.category is None:
        return f"{what} {_place_trait(trait)}"
    is_flag = trait.category in ("yes", "no")
    what = f"{what}: {trait.category}" if is_flag else f"{what} is {trait.category}"
    overall = "" if trait.overall is None else f", {show.share(trait.overall)} overall"
    return f"{what} in {show.share(trait.value)}{overall}"


def _place_trait(trait: RegimeTrait) -> str:
    size = abs(trait.value)
    degree = "far " if size >= 2 else "" if size >= 1 else "somewhat "
    return f"{degree}{'above' if trait.value > 0 else 'below'} average"
