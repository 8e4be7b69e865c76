"""Measured numbers into requirements with verdicts and into plain tables.

Measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

Results = dict[str, Any]

TARGETS = {
    ("hmmlearn", "log"): (40.0, 80.0),
    ("hmmlearn", "scaling"): (30.0, 60.0),
    ("pomegranate", "DenseHMM"): (100.0, 180.0),
    ("dynamax", "DiagonalGaussianHMM"): (40.0, 70.0),
}
PEER_SECTIONS = ("hmmlearn", "pomegranate", "dynamax")
MEMORY_SECTIONS = ("full_size", "full_size_missing")
MOST_OTHER_LOAD = 0.05
RESTARTS, ITERATIONS = 5, 100
HALVED_ITERATIONS = 5 * 10 + 3 * 10 + 80  # five restarts for 10, three for 10 more, one to 100


@dataclass(frozen=True)
class Requirement:
    """One line of the issue's table: what must hold, what is aimed at, and what was measured."""

    name: str
    measured: float | str
    must: float | None = None
    aim: float | None = None
    unit: str = "x"
    higher_is_better: bool = True
    noisy: bool = False

    @property
    def verdict(self) -> str:
        """Whether the measurement reaches the aim, the must, or neither.

        No verdict where others kept the machine busy.
        """
        if isinstance(self.measured, str):
            return self.measured
        return "machine busy" if self.noisy else self._judgement()

    def _judgement(self) -> str:
        if self.aim is not None and self._reaches(self.aim):
            return "aim met"
        if self.must is None:
            return "aim missed" if self.aim is not None else "reported"
        return "must met" if self._reaches(self.must) else "missed"

    def _reaches(self, target: float) -> bool:
        assert not isinstance(self.measured, str)
        return self.measured >= target if self.higher_is_better else self.measured <= target

    def cells(self) -> list[str]:
        """The line as text."""
        return [
            self.name,
            *(_quantity(value, self.unit) for value in (self.must, self.aim, self.measured)),
            self.verdict,
        ]


@dataclass(frozen=True)
class Table:
    """A titled table of text with a remark below it."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    remark: str = ""


def requirements(results: Results) -> list[Requirement]:
    """Every line of the issue's table.

    Also those whose peer is missing or whose measurement failed.
    """
    made = {
        **{section: _peer_lines(section, results[section]) for section in PEER_SECTIONS},
        "variational": [_variational_line(results["variational"])],
        "arithmetic": _arithmetic_lines(results["arithmetic"]),
        "full_size": [_memory_line(results["full_size"], "")],
        "full_size_missing": [
            _memory_line(results["full_size_missing"], ", 30 % of continuous cells missing")
        ],
        "growth": [_slope_line(results["growth"])],
        "live": _live_lines(results["live"]),
        "first_use": [_compile_line(results["first_use"])],
    }
    return [
        replace(line, noisy=_is_noisy(section, results))
        for section, lines in made.items()
        for line in lines
    ]


def _is_noisy(section: str, results: Results) -> bool:
    """Whether a time was measured while other processes used too much of the machine."""
    return section not in MEMORY_SECTIONS and bool(_busy(results[section]))


def _busy(section: Results) -> str:
    """A warning to append to the name of a measurement that others disturbed."""
    return " (machine busy)" if section["other_load"] > MOST_OTHER_LOAD else ""


def tables(results: Results) -> list[Table]:
    """All tables of the report, in reading order."""
    made = [
        _requirements_table(results),
        _peers_table(results),
        _variational_table(results["variational"]),
        _what_table(results),
        _arithmetic_table(results["arithmetic"]),
        _full_size_table(results),
        _growth_table(results["growth"]),
        _projection_table(results["sweep_projection"]),
        _sweep_table(results["sweep"]) if "sweep" in results else None,
        _live_table(results["live"]),
        _first_use_table(results["first_use"]),
        _load_table(results),
    ]
    return [table for table in made if table is not None]


def _absent(section: Results) -> str | None:
    """Why a section has no numbers, if it has none."""
    if "missing" in section:
        return "not installed"
    return "failed" if "failed" in section else None


def _rows_words(section: Results) -> str:
    return f", {section['rows']:,} rows" if "rows" in section else ""


def _variational_line(section: Results) -> Requirement:
    name = f"hmmlearn VariationalGaussianHMM diag, d = 64{_rows_words(section)}"
    return Requirement(name, _absent(section) or section["ratio"], 300.0, 1000.0)


def _peer_lines(name: str, section: Results) -> Iterable[Requirement]:
    absent = _absent(section)
    for (peer, model), (must, aim) in TARGETS.items():
        if peer != name:
            continue
        if absent:
            yield Requirement(f"{peer} {model}", absent, must, aim)
            continue
        for case in section["cases"]:
            if case["model"] == model:
                yield Requirement(f"{peer} {model}, {_case_words(case)}", case["ratio"], must, aim)


def _case_words(case: Results) -> str:
    return f"{case['rows']:,} x 407, {case['profile']} lengths, {case['spread']}"


def _arithmetic_lines(section: Results) -> Iterable[Requirement]:
    if absent := _absent(section):
        yield Requirement("share of this machine's sgemm rate", absent, 20.0, 35.0, "%")
        return
    for case in section["cases"]:
        yield Requirement(
            f"share of sgemm rate, {_case_words(case)}",
            100 * case["share_of_sgemm"],
            20.0,
            35.0,
            "%",
        )


def _memory_line(section: Results, words: str) -> Requirement:
    name = f"mixed model{_rows_words(section)}{words}: peak memory ÷ panel bytes"
    return Requirement(
        name, _absent(section) or section["peak_over_panel"], 1.6, 1.3, higher_is_better=False
    )


def _slope_line(section: Results) -> Requirement:
    measured = _absent(section) or section["slope"]
    return Requirement(
        "cost grows no faster than linearly: slope in logarithms",
        measured,
        1.1,
        None,
        "",
        higher_is_better=False,
    )


def _live_lines(section: Results) -> Iterable[Requirement]:
    for key, words in (("stored", "float32 + int8 row"), ("wide", "float64 + int64 row")):
        measured = _absent(section) or section[key]["median_us"]
        yield Requirement(
            f"live step, 407 + 334 columns, {words}, median",
            measured,
            None,
            5.0,
            " µs",
            higher_is_better=False,
        )


def _compile_line(section: Results) -> Requirement:
    measured = _absent(section) or section["cold"]["first_call_seconds"]
    return Requirement(
        "cold compilation of all kernels, both tiers",
        measured,
        20.0,
        None,
        " s",
        higher_is_better=False,
    )


def _requirements_table(results: Results) -> Table:
    rows = [line.cells() for line in requirements(results)]
    return Table(
        "Requirements",
        ("per EM iteration, K = 8", "must", "aim", "measured", "verdict"),
        rows,
        _PROFILES_REMARK,
    )


def _peers_table(results: Results) -> Table:
    columns = (
        "peer",
        "rows",
        "lengths",
        "longest",
        "around a row",
        "states",
        "theirs, s",
        "ours, s",
        "ratio",
        "log-likelihood differs by",
    )
    rows = []
    for section in (*PEER_SECTIONS, "hmmlearn_full"):
        if absent := _absent(results[section]):
            rows.append([section, absent] + [""] * (len(columns) - 2))
            continue
        name = section.removesuffix("_full")
        rows += [
            [f"{name} {case['model']}{_busy(results[section])}", *_peer_cells(case)]
            for case in results[section]["cases"]
        ]
    return Table("Peers, seconds per EM iteration", columns, rows, _PEERS_REMARK)


def _peer_cells(case: Results) -> list[str]:
    return [
        f"{case['rows']:,}",
        case["profile"],
        f"{case['longest']:,}",
        f"{case['length_around_a_row']:,.0f}",
        case["spread"],
        f"{case['their_seconds']:.3f}",
        f"{case['our_seconds']:.4f}",
        f"{case['ratio']:.0f}x",
        f"{case['log_likelihood_relative_difference']:.1e}",
    ]


def _variational_table(section: Results) -> Table | None:
    if _absent(section):
        return None
    cells = [
        f"{section['rows']:,} x {section['columns']}",
        f"{section['their_seconds']:.3f}",
        f"{section['our_seconds']:.5f}",
        f"{section['ratio']:.0f}x",
        f"{100 * section['same_state_share']:.3f} %",
        f"{section['largest_mean_difference']:.1e}",
    ]
    columns = (
        "size",
        "theirs, s",
        "ours, s",
        "ratio",
        "rows in the same state",
        "largest difference of means",
    )
    return Table(
        "Variational models, seconds per iteration" + _busy(section),
        columns,
        [cells],
        _variational_remark(section["iterations_compared"]),
    )


def _what_table(results: Results) -> Table:
    rows: dict[str, list[str]] = {}
    for section in PEER_SECTIONS:
        for case in results[section].get("cases", []):
            rows.setdefault(
                f"{section} {case['model']}", [f"{section} {case['model']}", case["what"]]
            )
    if "what" in results["variational"]:
        rows["variational"] = ["hmmlearn variational", results["variational"]["what"]]
    ours = (
        "fit(panel) with init, tol = 0: (time of many - time of few iterations) ÷ (many - "
        "few), float32, all cores"
    )
    return Table(
        "What is timed",
        ("implementation", "what it does"),
        [["Turncoat", ours], *rows.values()],
        _FAIRNESS_REMARK,
    )


def _arithmetic_table(section: Results) -> Table | None:
    if _absent(section):
        return None
    rows = [
        [
            case["profile"],
            case["spread"],
            f"{1e3 * case['seconds']:.2f}",
            f"{case['useful_flops'] / case['seconds'] / 1e9:.0f}",
            f"{100 * case['share_of_sgemm']:.0f} %",
            f"{100 * case['skippable_share']:.0f} %",
        ]
        for case in section["cases"]
    ]
    columns = (
        "lengths",
        "states",
        "ms per iteration",
        "useful Gflop/s",
        "share of sgemm",
        "cells with posterior ≤ 1e-8",
    )
    remark = f"sgemm in this run: {section['sgemm_gflops']:.0f} Gflop/s. {_ARITHMETIC_REMARK}"
    return Table("Arithmetic, continuous columns only" + _busy(section), columns, rows, remark)


def _full_size_table(results: Results) -> Table:
    sizes = ("panel, MB", "before fit, MB", "peak, MB", "before ÷ panel", "peak ÷ panel")
    columns = ("panel", "rows", "sequences", "longest", "s per iteration", *sizes)
    rows = []
    for section, words in (("full_size", "complete"), ("full_size_missing", "30 % missing")):
        measured = results[section]
        if absent := _absent(measured):
            rows.append([words, absent] + [""] * (len(columns) - 2))
            continue
        rows.append(
            [
                words + _busy(measured),
                *(f"{measured[key]:,}" for key in ("rows", "sequences", "longest")),
                f"{measured['seconds']:.3f}",
                *(
                    f"{measured[key] / 1e6:,.0f}"
                    for key in ("panel_bytes", "before_fit_bytes", "peak_bytes")
                ),
                f"{measured['before_fit_over_panel']:.2f}",
                f"{measured['peak_over_panel']:.2f}",
            ]
        )
    return Table("Mixed model, 407 float32 + 334 int8 columns", columns, rows, _MEMORY_REMARK)


def _growth_table(section: Results) -> Table | None:
    if _absent(section):
        return None
    pairs = list(zip(section["rows"], section["seconds"], strict=True))
    rows = [[f"{n:,}", f"{seconds:.4f}", f"{1e6 * seconds / n:.2f}"] for n, seconds in pairs]
    line = (
        f"{1e3 * section['fixed_seconds']:.1f} ms + {1e6 * section['seconds_per_row']:.3f} µs "
        f"per row"
    )
    remark = f"Slope in logarithms: {section['slope']:.3f}; straight line: {line}."
    return Table(
        "Growth, mixed model" + _busy(section),
        ("rows", "s per iteration", "µs per row"),
        rows,
        remark,
    )


def _projection_table(section: Results) -> Table | None:
    if _absent(section):
        return None
    per_state = {int(k): seconds for k, seconds in section["seconds"].items()}
    plain, halved = RESTARTS * ITERATIONS, HALVED_ITERATIONS
    rows = [
        [str(k), f"{s:.3f}", f"{s * plain / 60:.1f}", f"{s * halved / 60:.1f}"]
        for k, s in per_state.items()
    ]
    total = sum(per_state.values())
    rows.append(["all", f"{total:.3f}", f"{total * plain / 60:.1f}", f"{total * halved / 60:.1f}"])
    columns = ("K", "s per iteration", f"{plain} iterations, min", f"with halving ({halved}), min")
    remark = (
        f"{section['rows']:,} rows, mixed. A projection to the iteration cap: fits that "
        f"converge earlier cost less."
    )
    return Table("Sweep K = 2…10, projected" + _busy(section), columns, rows, remark)


def _sweep_table(section: Results) -> Table | None:
    if _absent(section):
        return None
    rows = [
        [
            k,
            f"{fit['seconds']:.1f}",
            " + ".join(str(n) for n in fit["iterations"]),
            fit["stop_reason"],
            f"{fit['bic']:,.0f}",
        ]
        for k, fit in section["fits"].items()
    ]
    size = f"{section['rows']:,} rows, mixed, drawn from 8 states"
    remark = (
        f"{size}; 5 restarts with halving, default tolerance: {section['seconds']:.0f} s in all."
    )
    return Table(
        "Sweep K = 2…10, run" + _busy(section),
        ("K", "s", "iterations per restart", "stopped by", "BIC"),
        rows,
        remark,
    )


def _live_table(section: Results) -> Table | None:
    if _absent(section):
        return None
    words = {"stored": "float32 cells, int8 codes", "wide": "float64 cells, int64 codes"}
    measured = [(name, section[key]) for key, name in words.items()]
    rows = [
        [name, f"{times['median_us']:.2f}", f"{times['p99_us']:.2f}", f"{times['calls']:,}"]
        for name, times in measured
    ]
    return Table(
        "Live step, 407 + 334 columns, K = 8" + _busy(section),
        ("row given as", "median, µs", "p99, µs", "calls"),
        rows,
    )


def _first_use_table(section: Results) -> Table | None:
    if _absent(section):
        return None
    rows = [
        [
            name,
            f"{section[name]['import_seconds']:.2f}",
            f"{section[name]['first_call_seconds']:.2f}",
        ]
        for name in ("cold", "cached")
    ]
    remark = (
        "First calls: a two-iteration fit of a small mixed panel in both tiers and one live "
        "step. Cold: empty compilation cache."
    )
    return Table(
        "First use in a new process" + _busy(section),
        ("kernels", "import, s", "first calls, s"),
        rows,
        remark,
    )


def _load_table(results: Results) -> Table:
    rows = [
        [name, f"{section['wall_seconds']:.0f}", f"{100 * section['other_load']:.0f} %"]
        for name, section in results.items()
    ]
    return Table("How quiet the machine was", ("section", "s", "other load"), rows, _LOAD_REMARK)


def _quantity(value: float | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}{unit}"


def _variational_remark(iterations: int) -> str:
    return (
        f"Same prior, start and data; states and means compared after {iterations} iterations. "
        f"hmmlearn's diagonal model runs full "
        "64 x 64 matrices and uses the Wishart's expectations, so the two bounds are not the "
        "same number and are not compared."
    )


_PROFILES_REMARK = (
    "Lengths: *sampled* is every so-manyth sequence of the full-size panel, ordered by length; "
    "*shrunk* has a tail shortened in "
    "proportion to the rows; *equal* is 100 rows each. Times of the peers depend on the lengths, "
    "so both "
    "ragged profiles are shown. States: *separated* data let posteriors harden, so that our "
    "kernels may skip negligible cells; "
    "*soft* data let them skip nothing."
)
_PEERS_REMARK = (
    "*around a row*: length of the sequence an average row sits in. Log-likelihoods are those at "
    "the common start, ours in float32; "
    "their difference is relative."
)
_FAIRNESS_REMARK = (
    "All implementations start from the same parameters on the same rows and may use all cores. "
    "Ours and the peer take turns, each after a pause, and the best round of each counts; peers "
    "after a warm-up iteration, with input checks and conversions outside the timer."
)
_ARITHMETIC_REMARK = (
    "Useful flops are 8·N·D·K per iteration, also where negligible cells were skipped: the "
    "*soft* lines are the share actually computed, "
    "the *separated* lines the rate at which the work gets done."
)
_MEMORY_REMARK = (
    "Peak resident memory of a new process that draws the panel in place and fits three "
    "iterations, libraries included; "
    "panel bytes are the cells alone."
)
_LOAD_REMARK = (
    "Other load: processor time spent outside the section's process, as a share of the machine. "
    "Above 5 % times get no verdict: others "
    "usually slow the peers down more than us, which flatters the ratios."
)
