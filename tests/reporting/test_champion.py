"""The report's section about the champion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reporting import sample_results as samples
from tests.reporting.html_reader import Page, read_page
from turncoat.evaluation.results import (
    ChainRow,
    ChampionChoice,
    Comparison,
    FoldChampion,
    KindRow,
    Results,
)
from turncoat.reporting import formatting as show
from turncoat.reporting import narrative
from turncoat.reporting.page import build_report

CHOICE = ChampionChoice(
    n_states=12,
    n_fraud_states=6,
    evidence_weights={f"feature_{n}": 1.5 - n / 10 for n in range(10)},
    chains=(ChainRow(8, 12, 6, 1, 0.61), ChainRow(8, 20, 10, 1, 0.6)),
    kinds=(
        KindRow("regimes", "selected features", 0.6123, 0.1111, 0.02, 0.01, 0.002, False),
        KindRow("ranker", "selected features", 0.7155, 0.0079, 0.0042, 0.001, 0.0004, False),
        KindRow("hybrid", "selected features", 0.7215, 0.0019, 0.0023, 0.0001, 0.0002, True),
        KindRow("hybrid", "all features", 0.7234, 0.0, 0.0, 0.0, 0.0, False),
    ),
)
GAP = Comparison(
    "champion",
    "XGBoost",
    "average_precision",
    -0.0312,
    (-0.04, -0.02),
    (-0.05, -0.01),
    None,
    "champion",
)


def crowned(*choices: ChampionChoice, verdict: str = "worse") -> Results:
    champions = tuple(FoldChampion(n, 1, choice) for n, choice in enumerate(choices, start=1))
    base = samples.rich()
    return replace(base, champions=champions, verdict=verdict, comparisons=(GAP, *base.comparisons))


def read(results: Results) -> Page:
    return read_page(build_report(results, {}).html())


def test_the_section_has_the_numbers_of_the_results() -> None:
    results = crowned(CHOICE)
    report = build_report(results, {})
    assert "champion" in {section.anchor for section in report.sections}
    table = next(table for table in report.tables if table.name == "champion")
    (group,) = table.groups
    for one, cells in zip(CHOICE.kinds, group.rows, strict=True):
        assert [cell.value for cell in cells] == [
            one.kind,
            one.chain,
            one.average_precision,
            one.shortfall,
            one.standard_error,
            one.excess_loss,
            one.loss_error,
        ]
    rows = [row for row in read_page(report.html()).tables["champion"] if len(row) > 1]
    assert [row[0] for row in rows] == [
        ("regimes", []),
        ("ranker", []),
        ("hybrid", ["chosen"]),
        ("hybrid", []),
    ]
    assert [row[2][0] for row in rows] == [
        show.number(one.average_precision) for one in CHOICE.kinds
    ]
    assert "is_chosen" in table.csv().decode().splitlines()[0]


def test_the_words_say_what_was_chosen_and_why() -> None:
    chosen, why, verdict = narrative.describe_champions(crowned(CHOICE))
    assert chosen.startswith(
        "Champion: hybrid, scores by boosted trees that see the customer's path"
    )
    assert "12 regimes, 6 of them for fraud, after a search of 2 chains" in chosen
    assert "feature_0 1.50, feature_1 1.40" in chosen
    assert chosen.endswith("feature_7 0.80 and 2 more.")
    assert "within one standard error of the best" in why
    assert verdict == (
        "Verdict on test rows: Keep XGBoost: the champion is worse. Give it more data, or a longer "
        "search. The champion is 0.0312 below XGBoost (Average precision, higher is better; 90 % "
        "interval over customers -0.0500 to -0.0100, excludes zero)."
    )
    words = " ".join(read(crowned(CHOICE)).words)
    assert chosen in words
    assert "champion is 0.0312 below XGBoost (Average precision, higher is better" in words


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("better", "Use the champion: it is better than XGBoost."),
        ("as good", "The champion is as good as XGBoost."),
        ("no better than chance", "Do not use the champion: it is no better than chance."),
    ],
)
def test_every_verdict_has_words(verdict: str, words: str) -> None:
    said = narrative.describe_champions(crowned(CHOICE, verdict=verdict))[-1]
    assert said.startswith(f"Verdict on test rows: {words}")


def test_a_chain_without_labels_and_several_folds_are_described() -> None:
    kinds = tuple(replace(one, is_chosen=one.chain == "all features") for one in CHOICE.kinds)
    wide = replace(CHOICE, n_states=4, n_fraud_states=0, evidence_weights={}, kinds=kinds)
    first, second, *_ = narrative.describe_champions(crowned(CHOICE, wide))
    assert first.startswith("Champion, fold 1, seed 1: hybrid")
    assert "Its chain has 4 regimes on all features, fitted without labels." in second
    headings = [
        row[0][0] for row in read(crowned(CHOICE, wide)).tables["champion"] if len(row) == 1
    ]
    assert headings == ["Fold 1, seed 1", "Fold 2, seed 1"]


def test_without_a_champion_there_is_no_section() -> None:
    assert "champion" not in {
        section.anchor for section in build_report(samples.rich(), {}).sections
    }
    assert narrative.describe_champions(samples.rich()) == ()


def test_hostile_names_stay_names() -> None:
    name = "<script>alert(1)</script>"
    kinds = tuple(replace(one, kind=name, chain=name) for one in CHOICE.kinds)
    odd = replace(CHOICE, kinds=kinds, evidence_weights={name: 1.0})
    assert "<script>alert" not in build_report(crowned(odd, verdict=name), {}).html()
