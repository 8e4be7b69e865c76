from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.reporting import sample_results as samples
from tests.reporting.html_reader import Page, read_page
from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.results import Results, SliceTable
from turncoat.reporting import formatting as show
from turncoat.reporting import narrative
from turncoat.reporting.page import Report, build_report


@cache
def report() -> Report:
    return build_report(samples.rich(), samples.MANIFEST)


@cache
def page() -> Page:
    return read_page(report().html())


@cache
def results() -> Results:
    return samples.rich()


def test_every_candidate_has_its_figures() -> None:
    rows = page().rows("candidates")
    said = {row[0][0]: row[0][1] for row in page().tables["candidates"]}
    for one in results().candidates:
        assert said[one.name] == [
            line for line in (f"{one.kind}, {one.mode}" if one.mode else one.kind, one.note) if line
        ]
        cells = rows[one.name]
        for metric, (value, small) in zip(show.MAIN_METRICS, cells, strict=False):
            figure, digits = one.metrics[metric], show.metric_text(metric).decimals
            assert value == show.number(figure.value, digits)
            assert small == [
                show.interval(figure.customer_interval, digits),
                f"± {show.number(figure.seed_std, digits)}",
            ]


def test_all_metrics_is_in_the_folded_table() -> None:
    expected = []
    for one in results().candidates:
        expected.append([one.name])
        for metric in show.METRIC_TEXTS:
            if metric in one.metrics:
                figure, shown = one.metrics[metric], show.metric_text(metric)
                intervals = [
                    show.interval(bounds, shown.decimals)
                    for bounds in (figure.customer_interval, figure.transaction_interval)
                ]
                folds = " · ".join(show.number(value, shown.decimals) for value in figure.by_fold)
                expected.append(
                    [
                        shown.label,
                        show.number(figure.value, shown.decimals),
                        *intervals,
                        show.number(figure.seed_std, shown.decimals),
                        folds,
                    ]
                )
    assert [[value for value, _ in row] for row in page().tables["all_metrics"]] == expected


def test_scores_that_are_no_probabilities_are_greyed_only_in_calibration() -> None:
    table = next(table for table in report().tables if table.name == "candidates")
    names = {one.name: one for one in results().candidates}
    for group in table.groups:
        for row in group.rows:
            for column, cell in zip(table.columns, row, strict=True):
                calibration = (
                    column.name in show.METRIC_TEXTS
                    and show.METRIC_TEXTS[column.name].is_calibration
                )
                assert cell.muted == (calibration and not names[row[0].text].is_probability)


def test_comparisons_and_headlines() -> None:
    rows = page().tables["comparisons"]
    assert len(rows) == len(results().comparisons)
    for one, row in zip(results().comparisons, rows, strict=True):
        assert row[0] == (one.first, [f"minus {one.second}"])
        assert [value for value, _ in row[1:]] == [
            show.metric_text(one.metric).label,
            show.signed(one.difference),
            show.signed_interval(one.customer_interval),
            show.signed_interval(one.transaction_interval),
            show.p_value(one.wilcoxon_p),
        ]
        if one.topic:
            assert narrative.describe_comparison(one) in page().words


def test_tiers_table_has_the_fraud_regime_and_the_scores() -> None:
    rows = page().rows("tiers")
    first = [
        (value.replace("\xa0", " "), [line.replace("\xa0", " ") for line in small])
        for value, small in rows["variational"]
    ]
    assert first[:6] == [
        ("6", []),
        (show.DASH, []),
        ("3.17 %", ["2.91 % to 3.45 %"]),
        ("17.2 %", ["15.0 % to 19.4 %"]),
        ("41.0 %", ["37.0 % to 45.0 %"]),
        ("5.46", ["4.81 to 6.12"]),
    ]
    one = next(
        one for one in results().candidates if one.name == "variational, corrected, filtered"
    )
    assert first[6][0] == f"{one.metrics['average_precision'].value:.3f}"
    assert [value for value, _ in rows["neural"]] == ["9", "64", "3.81\xa0%", *[show.DASH] * 6]


def test_scoring_table_is_that_of_the_paper() -> None:
    named = {one.name: one for one in results().candidates}
    rows = [row for row in page().tables["scoring"] if len(row) > 1]
    assert [row[0][0] for row in rows] == [
        "raw / smoothed",
        "corrected / smoothed",
        "corrected / filtered",
    ] * 2
    for name, row in zip(results().scoring_variants, rows, strict=True):
        expected = [
            show.number(named[name].metrics[m].value, show.metric_text(m).decimals)
            for m in ("average_precision", "ks", "ece_width", "ece_mass")
        ]
        assert [value for value, _ in row[1:]] == expected


def test_published_figures_stand_above_ours() -> None:
    rows = [row for row in page().tables["published"] if len(row) > 1]
    metrics = ("average_precision", "auroc", "ks", "ece_width")
    for published, row in zip(results().published, rows, strict=False):
        assert [value for value, _ in row] == [
            published.name,
            *(show.published(published.metrics.get(m)) for m in metrics),
        ]
    assert len(rows) == len(results().published) + len(results().candidates)


def test_slices() -> None:
    for place, title in enumerate(("by length of history", "by scenario"), start=1):
        expected: list[list[str]] = []
        for table in results().slices:
            if table.title == title:
                expected.append([table.candidate])
                expected += [_slice_row(table, at) for at in range(len(table.rows))]
        assert [[value for value, _ in row] for row in page().tables[f"slices_{place}"]] == expected


def _slice_row(table: SliceTable, at: int) -> list[str]:
    row = table.rows[at]
    figures = [
        show.number(row.metrics[m], show.metric_text(m).decimals)
        for m in show.METRIC_TEXTS
        if m in row.metrics
    ]
    return [row.label, show.count(row.n_rows), show.count(row.n_frauds), *figures]


def test_orders_regimes_and_parts() -> None:
    for place, selection in enumerate(results().selections, start=1):
        for order, row in zip(selection.orders, page().tables[f"orders_{place}"], strict=True):
            criteria = [
                show.number(v, 3) if name == "held_out" else show.count(v)
                for name, v in order.criteria.items()
            ]
            verdict = "no" if not order.eligible else "yes, kept" if order.kept else "yes"
            shares = [
                show.percent(order.occupancy),
                show.percent(order.fraud_rate),
                show.number(order.enrichment, 2),
            ]
            assert [value for value, _ in row] == [
                str(order.n_states),
                *criteria,
                *shares,
                verdict,
                order.reason,
            ]
        found = {
            (row[0][0], at): value
            for row in page().tables[f"sensitivity_{place}"]
            for at, (value, _) in enumerate(row[1:])
        }
        deltas = list(dict.fromkeys(row["min_gain"] for row in selection.sensitivity))
        for row in selection.sensitivity:
            assert found[
                show.round_percent(row["min_occupancy"]), deltas.index(row["min_gain"])
            ] == show.count(row["n_states"])
        stability = [
            [
                show.count(row["n_states"]),
                *(show.round_percent(row[n]) for n in ("by_eligibility", "by_criterion")),
            ]
            for row in selection.stability
        ]
        assert [
            [value for value, _ in row] for row in page().tables[f"stability_{place}"]
        ] == stability
    for place, table in enumerate(results().regimes, start=1):
        for regime, row in zip(table.rows, page().tables[f"regimes_{place}"], strict=True):
            assert [value for value, _ in row[1:]] == [
                show.percent(regime.share),
                show.percent(regime.fraud_rate),
                f"{show.percent(regime.lower)} to {show.percent(regime.upper)}",
                show.number(regime.enrichment, 2),
                show.percent(regime.stickiness),
                narrative.describe_trait(regime.traits[0]),
            ]
            assert row[-1][1] == [narrative.describe_trait(trait) for trait in regime.traits[1:]]
    expected = [
        [
            part.part,
            show.count(part.n_rows),
            show.count(part.n_customers),
            show.count(part.n_frauds),
        ]
        for part in results().parts
    ]
    assert [[value for value, _ in row] for row in page().tables["parts"]] == expected


def test_words_are_all_there() -> None:
    said = page().words
    for line in (
        " ".join(narrative.summarise(results())),
        *narrative.list_warnings(results()),
        *narrative.list_errata(results()),
        narrative.describe_split(results().protocol),
        "handbook",
        "1,754,155",
        "4,990",
        "0.84\xa0%",
        "182",
    ):
        assert line in said
    assert any(str(samples.MANIFEST["data"]["sha256"]) in line for line in said)


def test_every_caption_says_where_it_comes_from() -> None:
    captions = [
        *(table.caption for table in report().tables),
        *(figure.caption for figure in report().figures),
    ]
    assert len(captions) > 30
    for caption in captions:
        assert "Split: " in caption
        assert any(words in caption for words in ("inference", "filtered", "smoothed"))
        assert any(
            words in caption for words in ("out of sample", "in sample", "held out", "counts")
        )


def test_nothing_comes_from_outside() -> None:
    html = report().html()
    scripts = [attributes for tag, attributes in page().tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "budget-data"}, {}]
    for tag, attributes in page().tags:
        assert tag not in ("link", "iframe", "img")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            assert str(attributes.get(name) or "#").startswith("#")
    assert not re.search(r"url\(\s*['\"]?(?!#)", html)
    assert "@import" not in html
    assert "http://" not in html
    assert "https://" not in html


def test_page_is_accessible() -> None:
    assert ("html", {"lang": "en"}) in page().tags
    assert all("scope" in attributes for tag, attributes in page().tags if tag == "th")
    drawn = [attributes for tag, attributes in page().tags if tag == "svg"]
    assert len(drawn) == len(report().figures) + len(samples.summary().top_customers)
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in drawn)
    ids = [attributes["id"] for _, attributes in page().tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {
        str(attributes["href"])[1:]
        for _, attributes in page().tags
        if str(attributes.get("href") or "").startswith("#")
    }
    assert targets <= set(ids)


def test_figures_follow_the_page_into_the_dark() -> None:
    for figure in report().figures:
        assert not re.search(r"(?:fill|stroke): #", figure.inline)


def test_least_results_have_only_what_they_have() -> None:
    html = build_report(samples.minimal(), {}).html()
    read = read_page(html)
    assert set(read.tables) == {"candidates", "all_metrics"}
    assert [value for value, _ in read.rows("candidates")["forest"]] == [show.DASH, show.DASH]
    for absent in (
        "Headlines",
        "Choosing K",
        "Regimes",
        "Published results",
        "The run",
        "Warnings",
        "Curves",
    ):
        assert absent not in read.words


@pytest.mark.parametrize(
    "changes",
    [
        {"candidates": (), "scoring_variants": ()},
        {
            "scoring_variants": ("nobody",),
            "slices": (SliceTable("by month", "nobody", ()),),
            "comparisons": samples.rich().comparisons[:2],
        },
        {
            "selections": tuple(
                replace(one, orders=(), sensitivity=(), stability=(), by_eligibility=None)
                for one in samples.rich().selections
            )
        },
        {
            "regimes": tuple(
                replace(one, rows=(), transition_matrix=()) for one in samples.rich().regimes
            )
        },
        {
            "candidates": tuple(replace(one, metrics={}) for one in samples.rich().candidates[:2]),
            "published": samples.rich().published,
        },
    ],
)
def test_missing_parts_never_break_it(changes: dict[str, Any]) -> None:
    read_page(build_report(replace(samples.minimal(), **changes), samples.MANIFEST).html())


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", '" onload="x', "_$\\frac{$_{", "客户 & {{ 7 * 7 }} " + "a" * 200],
)
def test_hostile_names_are_only_names(name: str) -> None:
    html = build_report(samples.hostile(name), {name: name}).html()
    read = read_page(html)
    assert name in read.words
    assert not any("onload" in attributes for _, attributes in read.tags)
    assert html.count("<script") == html.count("</script>") == 2


def test_every_metric_has_a_heading() -> None:
    assert set(show.METRIC_TEXTS) == set(METRICS)
    assert {name: metric.is_calibration for name, metric in show.METRIC_TEXTS.items()} == {
        name: metric.needs_probability for name, metric in METRICS.items()
    }
