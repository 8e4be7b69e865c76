"""The first screen, the regimes in words and the terminal say what the summary holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.reporting import sample_results as samples
from tests.reporting.html_reader import Page, read_page
from tests.reporting.test_champion import CHOICE, crowned
from turncoat.evaluation.results import RegimeTrait, Results, SplitPart, StudyWarning
from turncoat.evaluation.summary import Figure, Summary
from turncoat.evaluation.verdict import CHANCE
from turncoat.reporting import formatting as show
from turncoat.reporting import narrative
from turncoat.reporting.first_screen import NO_SAVING, FirstScreen, build_first_screen
from turncoat.reporting.page import Report, build_report
from turncoat.reporting.regimes import regime_cards
from turncoat.reporting.terminal import write_summary

SPACE, MINUS = "\N{NO-BREAK SPACE}", "\N{MINUS SIGN}"


def first_screen(results: Results | None = None) -> FirstScreen:
    made = build_first_screen(results or samples.rich())
    assert made is not None
    return made


@cache
def report() -> Report:
    return build_report(samples.rich(), samples.MANIFEST)


@cache
def page() -> Page:
    return read_page(report().html())


def change(**changes: object) -> Results:
    """A few results with a changed summary."""
    rest: dict[str, Any] = {"latent_maps": (), "encoder_trainings": (), "joint_training": None}
    rest |= {"selections": (), "regimes": (), "slices": (), "published": (), "tiers": ()}
    return replace(samples.rich(), summary=replace(samples.summary(), **changes), **rest)


def test_every_budget_has_the_numbers_of_the_summary() -> None:
    summary, shown = samples.summary(), first_screen()
    for one, gain, texts in zip(summary.budgets, summary.gains, shown.budgets, strict=True):
        alerts = show.significant(one.alerts_per_day)
        assert texts["alerts"] == alerts
        assert texts["alerted"].startswith(show.share(one.alerted_share))
        assert texts["caught"] == f"{show.tally(one.frauds_per_month.value)} of 6,020"
        assert texts["caught-note"].startswith(show.share(one.recall.value))
        assert texts["precision"] == show.share(one.precision.value)
        assert one.net_saving is not None
        assert texts["saving"] == show.money(one.net_saving.value, "CHF")
        assert f"difference {show.two_digits(gain.value)} ({MINUS}32 to +4.2)" in texts["compared"]
        rows = f"{one.n_alerts:,.0f} alerts with {one.n_caught:,.0f} of the 2,248 frauds"
        assert texts["held-out"] == rows
    assert shown.budgets[shown.shown]["alerts"] == "200"
    assert shown.best == "Net saving is highest with about 500 alerts a day."
    seen = "Measured on 268,540 transactions that no model has seen: 9,803 customers, 2,248 frauds"
    assert shown.rows == seen


def test_the_page_shows_one_budget_and_the_script_has_all() -> None:
    assert f"<h1>{first_screen().conclusion}</h1>" in report().html()
    texts = first_screen().budgets[4]
    assert set(texts.values()) <= set(page().words)
    html = report().html()
    (content,) = re.findall(r'id="budget-data">(.*?)</script>', html)
    content = json.loads(content)
    assert content["currency"] == "CHF"
    budgets = samples.summary().budgets
    for one, row in zip(budgets, content["budgets"], strict=True):
        assert one.value_per_month is not None
        assert row["value"] == [one.value_per_month.value, *(one.value_per_month.interval or ())]
        assert row["reviews"] == one.reviews_per_month
        assert not any(name.startswith("saving") for name in row["texts"])
    assert [row["at"] for row in content["budgets"]][:: len(budgets) - 1] == [0.0, 1.0]
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in html
    assert "eval(" not in script
    assert "innerHTML" not in script


def test_the_page_is_light() -> None:
    assert len(report().html()) < 5_000_000


def test_without_amounts_money_is_left_out_with_a_sentence() -> None:
    results = replace(change(), summary=samples.summary(has_amounts=False))
    made = first_screen(results)
    assert not {"saving", "value"} & set(made.budgets[0])
    assert "Money is left out, because the schema names no amount column." in made.notes
    assert made.best == ""
    html = build_report(results, {}).html()
    ids = {attributes.get("id") for _, attributes in read_page(html).tags}
    assert not ids & {"per-review", "recoverable", "saving", "best"}
    assert "Money is left out" in html
    assert "net" not in " ".join(write_summary(results)).split("Models with")[0]


def test_assumptions_and_scaling_are_said() -> None:
    notes = " ".join(first_screen().notes)
    assert f"Assumed: a review costs CHF{SPACE}4, and 50{SPACE}% of a caught fraud's" in notes
    assert "1 in 1.2 transactions of these 14 days was held out" in notes
    assert "3 held-out frauds have no amount" in notes
    assert "unknown label" not in notes
    rich = samples.rich()
    unlabelled = replace(rich, parts=(*rich.parts, SplitPart("test", 9, 9, 9, n_unlabelled=4)))
    told = "Transactions of unknown label count as if fraud were as frequent among them; where"
    assert told in " ".join(first_screen(unlabelled).notes)
    traffic = samples.summary().traffic
    rate = traffic.n_frauds / traffic.n_rows
    alike, unusual = (
        " ".join(first_screen(change(traffic=replace(traffic, fraud_rate=usual))).notes)
        for usual in (rate, 0.5 * rate)
    )
    assert "frauds, alerts and money are for" not in alike
    told = f"{show.share(rate)} of the held-out transactions are fraud, but {show.share(rate / 2)}"
    assert told in unusual
    whole = replace(traffic, scale=1.0)
    assert "was held out" not in " ".join(first_screen(change(traffic=whole)).notes)


def test_customers_are_in_words() -> None:
    first, *_, last = first_screen().customers
    assert (first.customer, first.outcome) == ("customer 0", "fraud")
    assert first.facts == ("Tuesday 26 June 2018, 08:00 CEST", f"CHF{SPACE}1,012.50")
    assert first_screen().customers[1].facts == (
        "Tuesday 27 June 2018, 08:00 CEST",
        f"SEK{SPACE}2,025",
        "TERMINAL_ID 7",
    )
    assert first.reasons == ("amount 0, 12x this customer's usual",)
    assert last.reasons[1] == f"TERMINAL_ID 7 probably compromised (61{SPACE}%)"
    assert last.path_text == (
        f"Fraud probability of the last transaction after 333 earlier ones: 0.4{SPACE}%"
    )
    assert [card.customer for card in first_screen().customers if card.outcome == "genuine"] == [
        "customer 3",
        "customer 7",
    ]
    assert last.path[0][1] == f"{', '.join(last.facts[:2])}: 0.4{SPACE}%, regime 1"
    unpaid = replace(samples.summary().top_customers[0].path[0], amount=None)
    bare = replace(samples.summary().top_customers[0], path=(unpaid,))
    (shown,) = first_screen(change(top_customers=(bare,))).customers
    assert shown.facts == ("Tuesday 26 June 2018, 08:00 CEST",)
    assert "8 of these alerts were fraud." in " ".join(page().words)
    bars = [attributes for tag, attributes in page().tags if tag == "rect" and "y" in attributes]
    assert len(bars) >= sum(len(one.path) for one in samples.summary().top_customers)


@pytest.mark.parametrize(
    ("verdict", "conclusion"),
    [
        ("better", "Use the champion: it is better than XGBoost."),
        ("worse", "Keep XGBoost: the champion is worse."),
        ("", "No verdict on the champion: too few frauds."),
    ],
)
def test_the_verdict_comes_first(verdict: str, conclusion: str) -> None:
    results = crowned(CHOICE, verdict=verdict)
    model = replace(results.candidates[0], name="champion", family="champion")
    base = samples.summary()
    curve = replace(base.curves[0], candidate="champion")
    summary = replace(base, detector="champion", curves=(curve, *base.curves))
    candidates = (model, *results.candidates)
    results = replace(results, candidates=candidates, summary=summary, seeds=(1,))
    assert first_screen(results).conclusion == conclusion
    said = narrative.state_verdict(results)
    frauds = show.tally(curve.budgets[4].frauds_per_month.value)
    caught = f"With 200 alerts a day it catches {frauds} of 6,020 frauds a month, XGBoost 3,340."
    assert caught in said
    precision = model.metrics["average_precision"].value
    assert said[-2] == (
        f"Over all budgets, average precision is {precision:.3f}, XGBoost's 0.740 (difference "
        f"{MINUS}0.031, 90 % interval {MINUS}0.050 to {MINUS}0.010)."
    )
    kind = narrative.describe_kind(results)
    about = "the detector that Turncoat chose for these data"
    assert said[-1] == f"The champion, {about}, scores by {kind}."
    assert write_summary(results)[0].startswith(conclusion)


def test_without_xgboost_there_is_no_verdict() -> None:
    results = change()
    others = tuple(one for one in results.candidates if one.name != "XGBoost")
    base = samples.summary()
    curves = tuple(one for one in base.curves if one.candidate != "XGBoost")
    summary = replace(base, curves=curves, gains=(), reliability=base.reliability[:1])
    results = replace(results, candidates=others, comparisons=(), summary=summary)
    conclusion, caught, precision = narrative.state_verdict(results)
    assert (
        conclusion == "No verdict on the detector (variational regimes with labels): XGBoost was "
        "not compared."
    )
    assert "XGBoost" not in caught
    assert precision == (
        "Over all budgets, average precision is 0.614 (90 % interval 0.583 to 0.647)."
    )
    read_page(build_report(results, {}).html())
    chance = narrative.state_verdict(replace(results, verdict=CHANCE))
    assert chance[0] == (
        "Do not use the detector (variational regimes with labels): it is no better than chance."
    )


def test_reviews_that_cost_more_than_they_save_are_said() -> None:
    base = samples.summary()
    lost = Figure(-5.0, (-6.0, -4.0))
    curves = tuple(
        replace(one, budgets=tuple(replace(b, net_saving=lost) for b in one.budgets))
        for one in base.curves
    )
    assert first_screen(change(curves=curves)).best == NO_SAVING


def test_the_models_table_has_the_shown_budget() -> None:
    summary, rows = samples.summary(), page().rows("models")
    assert len(rows) == len(summary.curves) <= 10
    for curve in summary.curves:
        model = next(one for one in samples.rich().candidates if one.name == curve.candidate)
        cells, budget = rows[show.capitalise(narrative.name_model(model))], curve.budgets[4]
        assert budget.value_share is not None
        figures = budget.recall, budget.value_share, budget.precision
        for figure, (value, small) in zip(figures, cells, strict=False):
            assert value == show.share(figure.value)
            assert small == [show.show_range(figure.interval, show.share)]
    above = [row[0] for row in page().tables["models"] if row[0][1][:1] == ["shown above"]]
    assert [name for name, _ in above] == ["Variational regimes with labels"]
    budgets = page().tables["alert_budgets"]
    assert [row[0][0] for row in budgets] == [one["alerts"] for one in first_screen().budgets]
    files = {table.name: table for table in report().tables}
    by_model = files["alert_budgets_by_model"].csv().decode().splitlines()
    assert len(by_model) == 1 + len(summary.curves) * len(summary.budgets)
    assert len(files["top_customers"].csv().decode().splitlines()) == 11


def test_figures_have_at_most_six_curves_with_their_names() -> None:
    figures = {figure.name: figure for figure in report().figures}
    assert "frauds-caught" in figures
    for name, n_lines in (("frauds-caught-by-model", 6), ("precision-recall", 6)):
        (axes,) = figures[name].figure.axes
        lines = [line for line in axes.lines if len(line.get_xdata()) > 2]
        assert len(lines) == n_lines
        named = {" ".join(text.get_text().split()) for text in axes.texts}
        assert len(named) == n_lines
        assert {"XGBoost", "variational regimes with labels"} <= named
        places = [text.get_position()[1] for text in axes.texts]
        assert len(set(places)) == n_lines
        assert all(0 <= place <= 1 for place in places)
    assert sum(name.startswith("reliability") for name in figures) == 1
    (axes,) = figures["reliability"].figure.axes
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.001, 1.15), (0.001, 1.15))
    assert {text.get_text() for text in axes.texts} == {
        "XGBoost",
        "variational regimes with labels",
    }


def test_regimes_are_cards_in_words() -> None:
    results = samples.rich()
    table = replace(results.regimes[1], detector="variational, anchored")
    cards = regime_cards(replace(results, regimes=(results.regimes[0], table)))
    rates = sorted((row.fraud_rate for row in table.rows), reverse=True)
    assert [card.fraud_rate for card in cards] == [show.share(rate) for rate in rates]
    (fraud,) = (card for card in cards if card.is_fraud)
    assert fraud.title == f"Regime {table.fraud_regime}, the fraud regime"
    assert "of all transactions. The customer's next transaction stays in it" in fraud.sentences[1]
    assert all(len(card.traits) <= 4 for card in cards)
    assert regime_cards(samples.minimal()) == ()
    row = replace(table.rows[0], traits=(RegimeTrait("counterparty_sum_day", -1.5),))
    known = replace(results, regimes=(replace(table, rows=(row,)),), counterparties=("shop",))
    assert regime_cards(known)[0].traits == ("amounts in the last day at the shop below average",)


@pytest.mark.parametrize(
    ("trait", "words"),
    [
        (RegimeTrait("count_hour", 2.1), "transactions in the last hour far above average"),
        (RegimeTrait("V131", -0.5), "V131 somewhat below average"),
        (
            RegimeTrait("device", 0.61, "'phone'", 0.2),
            f"device is 'phone' in 61{SPACE}%, 20{SPACE}% overall",
        ),
        (
            RegimeTrait("new_device", 0.8, "yes", 0.05),
            f"device is new for the customer: yes in 80{SPACE}%, 5{SPACE}% overall",
        ),
    ],
)
def test_traits_are_in_plain_words(trait: RegimeTrait, words: str) -> None:
    assert narrative.word_trait(trait) == words


def test_the_terminal_has_one_screen_in_the_order_of_the_page() -> None:
    lines = write_summary(samples.rich())
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    starts = [
        text.index(words)
        for words in (
            "No verdict on the",
            "Measured on 268,540",
            "Your alert budget (24,000 transactions a day; assumed",
            "8 of the 10 highest-scored customers",
            "Models with 200 alerts a day",
            "Be careful: There are few frauds",
        )
    ]
    assert starts == sorted(starts)
    budget = samples.summary().budgets[4]
    assert budget.net_saving is not None
    (row,) = (line for line in lines if line.startswith("  200 "))
    assert show.share(budget.recall.value) in row
    assert show.significant(budget.net_saving.value) in row
    assert write_summary(samples.minimal()) == [narrative.title_results(samples.minimal())]


def test_few_frauds_are_said_beside_the_verdict() -> None:
    caution = "There are few frauds, 41 in the calibration part in one fold: all numbers are rough."
    assert first_screen().cautions == (caution,)
    assert caution in page().words
    calm = replace(samples.rich(), warnings=(StudyWarning("saturated", "x", {"saturation": 0.98}),))
    assert first_screen(calm).cautions == ()
    assert write_summary(calm)[-1] == "Be careful: 1 caution in the report."
    assert "Be careful" not in " ".join(write_summary(replace(calm, warnings=())))


def test_a_figure_without_an_interval_is_shown() -> None:
    base = samples.summary()
    alone = Figure(0.5, None)
    budgets = tuple(
        replace(one, recall=alone, false_alerts=Figure(None, None)) for one in base.budgets
    )
    curves = tuple(replace(one, budgets=budgets) for one in base.curves)
    texts = first_screen(change(curves=curves)).budgets[0]
    assert texts["caught-note"] == f"50{SPACE}% ({show.DASH})"
    assert texts["false-alerts"] == show.DASH
    results = change(curves=curves)
    read_page(build_report(results, {}).html())
    assert write_summary(results)


def test_summaries_find_the_budgets_of_a_model() -> None:
    summary: Summary = samples.summary()
    assert summary.find_budgets("XGBoost") == summary.curves[2].budgets
    assert summary.find_budgets("nobody") == ()
    assert summary.n_top_frauds == 8
