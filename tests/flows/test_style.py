"""Pages and names stay readable: short README, links that lead somewhere, plain words."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
import typer

from turncoat.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "src").rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in MODULES}

# Names that were replaced by plain ones. New code must not bring them back.
OLD_CLASSES = (
    "Keeper|Line|Ledger|Attempt|Wave|Ready|Working|Turns|KnownRecords|Known|Past|Given|Why|"
    "Remembered|Refusal|Problem|OvertakingError|EndingError|Door|Pace|TransactionForm|Seen|Rules|"
    "Parts|Judged|Contestant|Contender"
)
OLD_FUNCTIONS_AND_ARGUMENTS = (
    "look|ask|met|admitted|taken|told|only|beside|patience|telling|judging|"
    "(most|least)(_(?!likely).*)?|(second_party|entity)(_.*)?"
)
OLD_MODULES = (
    "keeper|line|ledger|attempt|waves|turns|known|past|refusals|telling|judging|contestants|parts|"
    "clues|moments"
)


def prose_lines(page: Path) -> list[str]:
    """Return the lines of a page outside code blocks, tables and formulas."""
    text = re.sub(r"```.*?```|\$\$.*?\$\$", "", page.read_text(), flags=re.DOTALL)
    return [line for line in text.splitlines() if not line.startswith("|")]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_line_lengths_of_a_page(page):
    for target in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target
    unbreakable = r"\]\([^)]*\)|\$[^$]*\$"  # link targets and formulas
    long = [line for line in prose_lines(page) if len(re.sub(unbreakable, "", line)) > 100]
    assert long == []


def test_pages_name_existing_commands_and_options():
    commands = {
        name: {"--help"}.union(*(param.opts + param.secondary_opts for param in command.params))
        for name, command in typer.main.get_command(app).commands.items()
    }
    every_option = {"--data", "--folder", "--ours"}.union(*commands.values())  # of benchmarks too
    for page in PAGES:
        text = page.read_text()
        # a command ends with its line or with its inline code
        for name, rest in re.findall(r"\bturncoat ([a-z][a-z-]*)\b([^`\n;|&]*)", text):
            options = set(re.findall(r"(?<= )--[a-z][a-z-]*", rest))
            if options or name in commands:
                assert options <= commands[name], f"{page.name}: turncoat {name}{rest}"
        lone = set(re.findall(r"`(--[a-z][a-z-]*)", text))
        assert lone <= every_option, page.name


def test_glossary_is_sorted():
    terms = re.findall(r"^- \*\*(.+?)\*\*:", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 40
    assert terms == sorted(terms, key=str.lower)


def test_a_class_name_has_one_meaning():
    classes = [node for tree in TREES.values() for node in tree.body]
    names = Counter(node.name for node in classes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_names_are_plain():
    found = [str(path) for path in MODULES if re.fullmatch(OLD_MODULES, path.stem)]
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                name, old = node.name, OLD_CLASSES
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.arg):
                name = node.arg if isinstance(node, ast.arg) else node.name
                old = OLD_FUNCTIONS_AND_ARGUMENTS
            else:
                continue
            if re.fullmatch(old, name.lstrip("_")):
                found.append(f"{path.name}: {name}")
    assert found == []
