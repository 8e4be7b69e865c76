"""The report's section about the pieces of the chains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.reporting import sample_results as samples
from tests.reporting.html_reader import read_page
from turncoat.evaluation.results import PieceTable, PieceWorth, Results
from turncoat.reporting.page import build_report
from turncoat.reporting.pieces import describe_pieces
from turncoat.scoring.chain_pieces import PIECE_NAMES

AP, LOSS = "average_precision", "log_loss"


def worth(piece: str, gap: float, low: float, high: float, is_used: bool = True) -> PieceWorth:
    values, gaps = {AP: 0.8 - gap, LOSS: 0.05 + gap / 10}, {AP: gap, LOSS: -gap / 10}
    intervals = {AP: (low, high), LOSS: (-high / 10, -low / 10)}
    return PieceWorth(piece, is_used, values, gaps, intervals)


PIECES = (
    worth("time_gaps", 0.0012, -0.003, 0.004),
    worth("own_profile", 0.1234, 0.1, 0.15),
    worth("row_share", -0.02, -0.03, -0.01),
    worth("counterparty", 0.12, 0.1, 0.14),
    worth("phases", 0.0, 0.0, 0.0, is_used=False),
)


def with_pieces(*pieces: PieceWorth) -> Results:
    table = PieceTable({AP: 0.8, LOSS: 0.05}, pieces or PIECES)
    return replace(samples.rich(), pieces=table)


def test_words_have_the_size_the_interval_and_the_sign() -> None:
    found = (text.replace("\N{MINUS SIGN}", "-") for text in describe_pieces(with_pieces()))
    assert tuple(found) == (
        "Time gaps have no clear effect (difference in average precision +0.0012, -0.0030 to "
        "0.0040).",
        "The customer's own profile is worth 0.123 of average precision (0.100 to 0.150).",
        "Telling the intruder's transactions from the owner's is harmful here: -0.020 of average "
        "precision (-0.030 to -0.010).",
        "The counterparty's chain is worth 0.120 of average precision (0.100 to 0.140).",
        "The duration of compromises is not used: the chains that were learnt here do not have it.",
    )


def test_the_section_follows_the_champion_s_and_has_all_numbers() -> None:
    report = build_report(with_pieces(), {})
    section = next(one for one in report.sections if one.anchor == "pieces")
    table = next(table for table in report.tables if table.name == "pieces")
    ((full, *rows),) = [group.rows for group in table.groups]
    assert [cell.value for cell in full] == ["all", 0.8, None, 0.05, None, ""]
    effects = "no clear effect", "helps", "harmful here", "helps", "not used"
    for one, cells, effect in zip(PIECES, rows, effects, strict=True):
        numbers = one.values[AP], one.differences[AP], one.values[LOSS], one.differences[LOSS]
        assert [cell.value for cell in cells] == [one.piece, *numbers, effect]
    header = table.csv().decode().splitlines()[0]
    assert "average_precision_difference_lower,average_precision_difference_upper" in header
    assert len(section.blocks[0].figures) == 2
    page = read_page(report.html())
    words = " ".join(page.words)
    assert all(sentence in words for sentence in describe_pieces(with_pieces()))
    assert "pieces" in page.tables


def test_figures_show_the_pieces_that_were_left_out() -> None:
    report = build_report(with_pieces(), {})
    figure = next(one for one in report.figures if one.name == "pieces-average-precision")
    assert "The customer's own profile +0.1234" in figure.alt
    assert "duration" not in figure.alt  # nothing was left out
    assert figure.svg.startswith(b"<?xml")
    tiny = with_pieces(worth("phases", -0.0000312, -0.001, 0.001))
    figure = next(one for one in build_report(tiny, {}).figures if one.name == figure.name)
    assert figure.alt.endswith("The duration of compromises 0.0000")


def test_without_chains_there_is_no_section() -> None:
    report = build_report(samples.rich(), {})
    assert "pieces" not in {section.anchor for section in report.sections}
    assert describe_pieces(samples.rich()) == ()


@pytest.mark.parametrize("values", [{}, {AP: None, LOSS: None}])
def test_figures_that_do_not_exist_are_dashes(values: dict[str, float | None]) -> None:
    odd = replace(PIECES[0], values=values, differences={}, intervals={})
    assert "of unknown worth" in describe_pieces(with_pieces(odd))[0]
    assert build_report(with_pieces(odd), {}).html()


def test_every_piece_has_words_and_hostile_names_stay_names() -> None:
    for name in PIECE_NAMES:
        text = describe_pieces(with_pieces(worth(name, 0.1, 0.05, 0.2)))[0]
        assert not text.lower().startswith(f"{name.replace('_', ' ')} is")
    odd = with_pieces(worth("<script>alert(1)", 0.1, 0.05, 0.2))
    assert "<script>alert" not in build_report(odd, {}).html()
