from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from matplotlib.patches import StepPatch

from tests.reporting import sample_results as samples
from tests.reporting.html_reader import Page, read_page
from turncoat.evaluation.paper.joint_training import JointCycle, JointRun
from turncoat.evaluation.protocols import SplitProtocol
from turncoat.evaluation.results import Results
from turncoat.reporting import formatting as show
from turncoat.reporting.drawing import FAINT, SERIES, ReportFigure
from turncoat.reporting.page import Report, build_report
from turncoat.reporting.paper.latent_map import FRAUD, describe_manifold, regime_style
from turncoat.reporting.paper.training import describe_joint_training


@cache
def results() -> Results:
    rich = samples.rich()
    return replace(
        samples.minimal(),
        protocol=SplitProtocol(),
        encoder_trainings=rich.encoder_trainings,
        latent_maps=rich.latent_maps,
        joint_training=rich.joint_training,
    )


@cache
def report() -> Report:
    return build_report(results(), {})


@cache
def page() -> Page:
    return read_page(report().html())


def drawn(name: str, of: Report | None = None) -> ReportFigure:
    return next(figure for figure in (of or report()).figures if figure.name == name)


def file_of(name: str) -> list[dict[str, str]]:
    table = next(table for table in report().tables if table.name == name)
    return list(csv.DictReader(io.StringIO(table.csv().decode())))


def cells(table: str) -> list[list[str]]:
    return [[value for value, _ in row] for row in page().tables[table]]


def said(figure: ReportFigure) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.svg.decode())


def dots(figure: ReportFigure) -> list[tuple[str, int]]:
    """Colour and number of dots of each layer, the lowest first."""
    layers = re.findall(
        r'<path d="([^"]*)"[^>]*fill: none;[^>]*? stroke: (#\w+);[^>]*stroke-linecap: round',
        figure.svg.decode(),
    )
    return [(colour, path.count("M")) for path, colour in layers]


def with_changes(**changes: Any) -> Report:
    return build_report(replace(samples.minimal(), **changes), {})


def test_the_section_is_there_only_if_it_has_something() -> None:
    assert [section.anchor for section in report().sections if section.anchor == "neural"] == [
        "neural"
    ]
    assert "The neural tier" in page().words
    assert "neural" not in [
        section.anchor for section in build_report(samples.minimal(), {}).sections
    ]
    for part in ("encoder_trainings", "latent_maps", "joint_training"):
        alone = with_changes(**{part: getattr(results(), part)})
        assert [section.title for section in alone.sections if section.anchor == "neural"] == [
            "The neural tier"
        ]


def test_losses_are_drawn_with_the_kept_epoch() -> None:
    for place, training in enumerate(results().encoder_trainings, start=1):
        figure = drawn(f"losses-{place}")
        kept, train, held_out = figure.figure.axes[0].lines
        assert set(kept.get_xdata()) == {training.best_epoch}
        assert tuple(train.get_ydata()) == training.train_losses
        assert tuple(held_out.get_ydata()) == training.validation_losses
        assert (
            list(train.get_xdata())
            == list(held_out.get_xdata())
            == list(range(1, len(training.train_losses) + 1))
        )
        best = show.number(training.validation_losses[training.best_epoch - 1])
        legend = [
            "training, in sample",
            "validation customers, held out",
            f"epoch {training.best_epoch}, kept: validation loss {best}",
        ]
        assert [text.get_text() for text in figure.figure.texts] == legend
        assert f"a fraud row weighs {show.number(training.class_weight, 2)}" in figure.caption
        assert figure.figure.axes[0].get_yscale() == "linear"


def test_losses_of_a_wide_range_have_a_logarithmic_axis() -> None:
    wide = replace(
        results().encoder_trainings[0],
        train_losses=(9.0, 1.0, 0.1),
        validation_losses=(8.0, 2.0, 0.3),
        best_epoch=3,
    )
    figure = drawn("losses-1", with_changes(encoder_trainings=(wide,)))
    assert figure.figure.axes[0].get_yscale() == "log"
    assert "Logarithmic axis" in figure.caption


def test_trainings_are_told_in_a_table_and_in_full_in_a_file() -> None:
    expected = [
        [
            one.detector,
            str(one.latent_dim),
            str(len(one.train_losses)),
            str(one.best_epoch),
            show.number(min(one.validation_losses)),
            "yes" if one.stopped_early else "no",
            show.number(one.class_weight, 2),
        ]
        for one in results().encoder_trainings
    ]
    assert cells("trainings") == expected
    assert [float(row["validation_loss"]) for row in file_of("trainings")] == [
        min(one.validation_losses) for one in results().encoder_trainings
    ]
    written = [
        (
            row["detector"],
            int(row["epoch"]),
            float(row["train_loss"]),
            float(row["validation_loss"]),
        )
        for row in file_of("losses")
    ]
    assert written == [
        (one.detector, epoch, *losses)
        for one in results().encoder_trainings
        for epoch, losses in enumerate(
            zip(one.train_losses, one.validation_losses, strict=True), start=1
        )
    ]


def test_a_training_of_one_epoch_or_none() -> None:
    one = replace(
        results().encoder_trainings[0], train_losses=(0.5,), validation_losses=(0.25,), best_epoch=1
    )
    read = with_changes(
        encoder_trainings=(one, replace(one, train_losses=(), validation_losses=(), best_epoch=0))
    )
    assert [figure.name for figure in read.figures if figure.name.startswith("losses")] == [
        "losses-1"
    ]
    assert "epoch 1, kept: validation loss 0.250" in [
        text.get_text() for text in drawn("losses-1", read).figure.texts
    ]
    assert [
        [value for value, _ in row][2:5] for row in read_page(read.html()).tables["trainings"]
    ] == [["1", "1", "0.250"], ["0", "0", show.DASH]]


def test_the_map_shows_every_row_by_regime_with_the_fraud_regime_on_top() -> None:
    latents = results().latent_maps[0]
    layers = dots(drawn("latents-1-regimes"))
    count = {
        str(regime_style(regime, 3)["color"]): latents.regimes.count(regime) for regime in range(4)
    }
    assert dict(layers) == count
    assert layers[-1][0] == FRAUD
    assert [number for _, number in layers[:-1]] == sorted(
        (number for _, number in layers[:-1]), reverse=True
    )
    named = said(drawn("latents-1-regimes"))
    assert "Most likely regime; k* = 3 is the fraud regime" in named
    for name in ("0", "1", "2", "k* = 3"):
        assert named.count(name) == 2  # on the map and in the key


def test_the_map_shows_frauds_on_top_of_the_rest() -> None:
    labels = results().latent_maps[0].labels
    frauds = sum(labels)
    layers = dots(drawn("latents-1-labels"))
    assert layers == [(FAINT, len(labels) - frauds), ("#ffffff", frauds), (FRAUD, frauds)]
    assert f"{frauds} of {len(labels)} rows are fraud" in said(drawn("latents-1-labels"))


def test_dots_keep_their_places_and_one_scale() -> None:
    latents = replace(
        results().latent_maps[0],
        x=(0.0, 4.0, 4.0),
        y=(0.0, 0.0, 1.0),
        regimes=(0, 0, 0),
        labels=(0, 0, 0),
    )
    paths = re.findall(
        r'<path d="(M[^"]*)"[^>]*stroke-linecap: round',
        drawn("latents-1-labels", with_changes(latent_maps=(latents,))).svg.decode(),
    )
    (left, low), (right, same), (also, up) = (
        map(float, pair) for pair in re.findall(r"M (\S+) (\S+)", paths[0])
    )
    assert right == also
    assert low == same
    assert low - up == pytest.approx((right - left) / 4, abs=0.5)
    assert right - left > 200


def test_points_are_in_a_file() -> None:
    latents = results().latent_maps[0]
    written = [
        (float(row["x"]), float(row["y"]), int(row["regime"]), int(row["label"]))
        for row in file_of("latents_1")
    ]
    assert written == list(zip(latents.x, latents.y, latents.regimes, latents.labels, strict=True))


def test_a_map_without_fraud_with_one_place_or_without_rows() -> None:
    latents = results().latent_maps[0]
    no_fraud = replace(latents, labels=(0,) * len(latents.x), regimes=(1,) * len(latents.x))
    one_place = replace(latents, x=(1.0, 1.0), y=(2.0, 2.0), regimes=(0, 3), labels=(0, 1))
    empty = replace(latents, x=(), y=(), regimes=(), labels=(), axes=(), manifold=None)
    read = with_changes(latent_maps=(no_fraud, one_place, empty))
    assert "No fraud in 200 rows" in said(drawn("latents-1-labels", read))
    assert [number for _, number in dots(drawn("latents-1-labels", read)) if number] == [200]
    assert said(drawn("latents-1-regimes", read)).count("1") == 2
    assert dots(drawn("latents-2-labels", read)) == [(FAINT, 1), ("#ffffff", 1), (FRAUD, 1)]
    assert not [
        figure.name for figure in read.figures if figure.name.startswith(("latents-3", "axis-3"))
    ]
    assert not [table.name for table in read.tables if table.name.endswith("_3")]
    assert "One manifold or not, neural" in read_page(read.html()).words


def test_many_regimes_look_different() -> None:
    looks = [tuple(regime_style(regime, 5).values()) for regime in range(19)]
    assert len(set(looks)) == 19
    assert [regime for regime in range(19) if looks[regime][0] == FRAUD] == [5]


def test_a_large_map_is_light_and_loads_nothing() -> None:
    latents, n = results().latent_maps[0], 5000
    x, y = (
        tuple(step * row % 1.0 for row in range(n)) for step in (0.7548776662, 0.5698402910)
    )  # evenly spread
    large = replace(
        latents,
        x=x,
        y=y,
        regimes=tuple(row % 15 for row in range(n)),
        labels=tuple(int(row % 100 == 0) for row in range(n)),
        axes=(),
        manifold=None,
    )
    read = with_changes(latent_maps=(large,))
    assert sum(number for _, number in dots(drawn("latents-1-regimes", read))) > 0.95 * n
    assert (
        sum(len(figure.inline) for figure in read.figures if figure.name.startswith("latents"))
        < 300_000
    )
    html = read.html()
    assert "<image" not in html
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in html


def test_axes_show_fraud_above_and_regimes_below() -> None:
    latents = results().latent_maps[0]
    for place, axis in enumerate(latents.axes, start=1):
        figure = drawn(f"axis-1-{place}")
        above, below = figure.figure.axes
        assert all(tuple(patch.get_data().values) == axis.fraud_rate for patch in _steps(above))
        filled = [patch for patch in _steps(below) if patch.get_fill()]
        assert len(filled) == len(axis.regime_order)
        lower = [0.0] * len(axis.fraud_rate)
        for regime, patch in zip(axis.regime_order, filled, strict=True):
            values, _, baseline = patch.get_data()
            assert list(baseline) == lower
            lower = list(values)
            assert list(values - baseline) == pytest.approx(
                [shares[regime] for shares in axis.regime_shares]
            )
        assert [text.get_text() for text in figure.figure.texts] == [
            "k* = 3" if k == 3 else str(k) for k in axis.regime_order
        ]
        assert axis.name in figure.caption
        assert "no UMAP" in figure.caption
        assert f"{show.percent(axis.fraud_rate[-1])} in the last" in figure.alt


def _steps(axes: Any) -> Iterator[StepPatch]:
    return (patch for patch in axes.patches if isinstance(patch, StepPatch))


def test_the_manifold_test_is_shown_in_numbers_and_words() -> None:
    latents = results().latent_maps[0]
    expected = [
        [
            show.capitalise(axis.name),
            *(
                show.percent(value)
                for value in (
                    axis.segmentation,
                    axis.monotonicity,
                    axis.gradualness,
                    axis.adjacency,
                )
            ),
            show.number(axis.valley_depth, 2),
            show.number(axis.head_correlation, 2),
            ", ".join("3 (k*)" if regime == 3 else str(regime) for regime in axis.regime_order),
        ]
        for axis in latents.axes
    ]
    assert cells("manifold_1") == expected
    assert expected[1][2:5] == [show.DASH] * 3
    for line in (
        *describe_manifold(latents),
        show.percent(latents.first_component_share),
        show.percent(latents.largest_piece_share),
    ):
        assert line in page().words
    assert any(
        "Do not trust its distances" in line and "does not depend on it" in line
        for line in page().words
    )
    titles = [
        attributes["title"]
        for tag, attributes in page().tags
        if tag == "th" and attributes.get("title")
    ]
    assert any("0 without one, 1 for a gap" in str(title) for title in titles)


def test_bins_are_in_a_file() -> None:
    written = [
        (
            row["axis"],
            int(row["bin"]),
            float(row["fraud_rate"]),
            tuple(float(row[f"regime_{k}"]) for k in range(4)),
        )
        for row in file_of("bins_1")
    ]
    assert written == [
        (axis.name, at, fraud, shares)
        for axis in results().latent_maps[0].axes
        for at, (fraud, shares) in enumerate(
            zip(axis.fraud_rate, axis.regime_shares, strict=True), start=1
        )
    ]


def test_an_axis_without_fraud_or_without_a_regime() -> None:
    axis = replace(
        results().latent_maps[0].axes[1],
        fraud_rate=(0.0, 0.0),
        regime_shares=((1.0, 0.0), (0.25, 0.75)),
        regime_order=(1,),
    )
    read = with_changes(
        latent_maps=(
            replace(
                results().latent_maps[0],
                axes=(axis, replace(axis, fraud_rate=(), regime_shares=(), regime_order=())),
            ),
        )
    )
    assert [figure.name for figure in read.figures if figure.name.startswith("axis")] == [
        "axis-1-1"
    ]
    assert [text.get_text() for text in drawn("axis-1-1", read).figure.texts] == ["1", "0"]
    assert read_page(read.html()).tables["manifold_1"][1][-1][0] == show.DASH


def test_joint_training_is_drawn_cycle_by_cycle() -> None:
    joint = results().joint_training
    assert joint is not None
    for name, drawn_values in (
        (
            "joint-occupancy",
            (
                lambda one: one.effective_states,
                lambda one: max(one.counts) / 20_000,
                lambda one: one.enrichment,
            ),
        ),
        (
            "joint-separation",
            (
                lambda one: one.separation,
                lambda one: one.relative_separation,
                lambda one: one.spread,
            ),
        ),
    ):
        figure = drawn(name)
        for axes, of in zip(figure.figure.axes, drawn_values, strict=True):
            lines = [line for line in axes.lines if line.get_color() in SERIES[:2]]
            for run, line in zip(joint.runs, lines, strict=True):
                shown = [None if value != value else value for value in line.get_ydata()]
                assert shown == pytest.approx([of(cycle) for cycle in run.cycles])
                assert list(line.get_xdata()) == [cycle.cycle for cycle in run.cycles]
        assert [text.get_text() for text in figure.figure.texts] == [
            run.start for run in joint.runs
        ]
    reference = drawn("joint-occupancy").figure.axes[0].lines[0]
    assert set(reference.get_ydata()) == {joint.n_states}


def test_counts_of_states_are_stacked_for_every_run() -> None:
    joint = results().joint_training
    assert joint is not None
    figure = drawn("joint-counts")
    assert [axes.get_title(loc="left") for axes in figure.figure.axes] == [
        show.capitalise(run.start) for run in joint.runs
    ]
    for run, axes in zip(joint.runs, figure.figure.axes, strict=True):
        tops = [layer.get_paths()[0].get_extents() for layer in axes.collections]
        assert len(tops) == joint.n_states
        assert tops[0].y0 == 0
        assert max(box.y1 for box in tops) == pytest.approx(
            max(sum(cycle.counts) for cycle in run.cycles)
        )
        assert tops[0].y1 == pytest.approx(max(cycle.counts[0] for cycle in run.cycles))
        assert show.join_words(show.count(value) for value in run.cycles[-1].counts) in figure.alt


def test_joint_training_has_its_first_lowest_and_last_cycle_in_a_table() -> None:
    joint = results().joint_training
    assert joint is not None
    expected: list[list[str]] = []
    for run in joint.runs:
        expected.append([show.capitalise(run.start)])
        expected += [
            ["first", *_cycle(run.cycles[0])],
            ["fewest states and last", *_cycle(run.cycles[-1])],
        ]
    assert cells("joint") == expected
    assert expected[2][-1] == show.DASH
    for line in describe_joint_training(joint):
        assert line in page().words
    dip = JointRun("dip", (_with(0, 3.0), _with(1, 1.2), _with(2, 2.0)))
    read = read_page(with_changes(joint_training=replace(joint, runs=(dip,))).html())
    assert [row[0][0] for row in read.tables["joint"][1:]] == ["first", "fewest states", "last"]
    assert [row[1][0] for row in read.tables["joint"][1:]] == ["0", "1", "2"]


def _cycle(one: JointCycle) -> list[str]:
    shown = [
        str(one.cycle),
        show.number(one.effective_states, 2),
        show.percent(max(one.counts) / sum(one.counts)),
    ]
    return [
        *shown,
        *(show.number(value) for value in (one.separation, one.relative_separation, one.spread)),
        show.number(one.enrichment, 2),
    ]


def _with(cycle: int, effective_states: float) -> JointCycle:
    return JointCycle(cycle, (6.0, 4.0), effective_states, 0.5, 0.6, 0.7, None)


def test_every_cycle_is_in_a_file() -> None:
    joint = results().joint_training
    assert joint is not None
    cycles = [(show.capitalise(run.start), cycle) for run in joint.runs for cycle in run.cycles]
    for (start, cycle), row in zip(cycles, file_of("joint_cycles"), strict=True):
        assert (row["start"], int(row["cycle"])) == (start, cycle.cycle)
        assert tuple(float(row[f"count_{place}"]) for place in range(1, 5)) == cycle.counts
        assert (float(row["effective_states"]), float(row["separation"])) == (
            cycle.effective_states,
            cycle.separation,
        )
        assert row["enrichment"] == ("" if cycle.enrichment is None else repr(cycle.enrichment))


def test_a_run_of_one_cycle_or_none() -> None:
    joint = results().joint_training
    assert joint is not None
    read = with_changes(
        joint_training=replace(
            joint, runs=(JointRun("from scratch", (_with(0, 1.5),)), JointRun("never begun", ()))
        )
    )
    assert len(drawn("joint-occupancy", read).figure.axes) == 2  # nothing has an enrichment
    assert [[value for value, _ in row][:4] for row in read_page(read.html()).tables["joint"]] == [
        ["From scratch"],
        ["first, fewest states and last", "0", "1.50", show.percent(0.6)],
    ]
    nothing = with_changes(joint_training=replace(joint, runs=()))
    assert not [figure.name for figure in nothing.figures if figure.name.startswith("joint")]
    assert describe_joint_training(joint)[0] in read_page(nothing.html()).words


def test_figures_are_the_same_every_time() -> None:
    again = build_report(results(), {})
    for first, second in zip(report().figures, again.figures, strict=True):
        assert first.svg == second.svg
        assert first.png == second.png
    assert report().html() == again.html()


def test_names_are_escaped() -> None:
    name = '<b>"neural" & co</b>'
    latents = results().latent_maps[0]
    joint = results().joint_training
    assert joint is not None
    read = with_changes(
        encoder_trainings=(replace(results().encoder_trainings[0], detector=name),),
        latent_maps=(
            replace(
                latents,
                detector=name,
                axes=tuple(replace(axis, name=name) for axis in latents.axes),
            ),
        ),
        joint_training=replace(joint, runs=(JointRun(name, joint.runs[0].cycles),)),
    )
    parsed = read_page(read.html())
    assert not any(tag == "b" for tag, _ in parsed.tags)
    assert name in parsed.words
    labels = [str(attributes["aria-label"]) for tag, attributes in parsed.tags if tag == "svg"]
    assert sum(name in label for label in labels) >= 6
