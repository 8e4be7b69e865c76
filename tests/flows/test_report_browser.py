"""The report in a browser: the slider and the costs show the numbers of the summary."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.reporting import sample_results as samples
from turncoat.reporting import formatting as show
from turncoat.reporting.first_screen import BEST_SAVING, NO_SAVING, build_first_screen
from turncoat.reporting.page import build_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
OTHERS = {"latent_maps": (), "encoder_trainings": (), "joint_training": None}
OTHERS |= {"selections": (), "regimes": (), "comparisons": (), "slices": ()}
RESULTS = replace(samples.rich(), **OTHERS)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The report in an offline browser that must not complain."""
    report = tmp_path_factory.mktemp("report") / "report.html"
    report.write_text(build_report(RESULTS, samples.MANIFEST).html(), encoding="utf-8")
    complaints: list[str] = []
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_context(offline=True).new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.goto(report.as_uri())
        yield opened
        browser.close()
    assert complaints == []


def test_the_slider_and_the_costs_show_the_numbers_of_the_summary(page: Any) -> None:
    summary, first = RESULTS.summary, build_first_screen(RESULTS)
    assert summary is not None
    assert first is not None

    def read() -> dict[str, str]:
        ids = [*first.budgets[0], "best"]
        script = "ids => ids.map(id => document.getElementById(id).textContent)"
        return dict(zip(ids, page.evaluate(script, ids), strict=True))

    assert read() == {**first.budgets[first.shown], "best": first.best}
    for place, texts in enumerate(first.budgets):
        page.locator("#slider").fill(str(place))
        assert read() == {**texts, "best": first.best}
    box, plot = (page.locator(name).bounding_box() for name in ("#marker", ".overlay"))
    assert box["x"] == pytest.approx(plot["x"] + plot["width"], abs=2)
    page.locator("#slider").press("Home")
    page.locator("#per-review").fill("13.01")
    page.locator("#recoverable").fill("30")
    savings = [
        0.3 * one.value_per_month.value - 13.01 * one.reviews_per_month for one in summary.budgets
    ]
    low, high = (0.3 * end - 13.01 * 300 for end in summary.budgets[0].value_per_month.interval)
    shown = read()
    assert shown["saving"] == show.money(savings[0], "CHF")
    assert shown["saving-note"] == show.show_range((low, high), show.significant)
    assert shown["best"] == BEST_SAVING.format(first.budgets[savings.index(max(savings))]["alerts"])
    page.locator("#per-review").fill("1e6")
    assert read()["best"] == NO_SAVING
    page.locator("#recoverable").fill("250")
    assert read()["saving"] == show.DASH


def test_links_and_paper_open_sections_and_no_page_is_too_wide(page: Any) -> None:
    page.get_by_role("link", name="Every budget as a table.").click()
    page.locator("#table-alert_budgets").wait_for(state="visible")
    page.evaluate("document.getElementById('budgets').open = false")
    for width in (360, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#table-alert_budgets").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not page.locator("#table-alert_budgets").is_visible()
