"""The pages of the folders say where to look: a module that none of them names is not found."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page
    for folder in ("gateway", "store", "namesrv", "protocols", "spark")
    for page in (ROOT / folder).rglob("README.md")
)
FENCED = re.compile(r"```.*?```", re.DOTALL)
QUOTED = re.compile(r"`([^`]+)`")
WORD = re.compile(r"[a-z_0-9]+")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_module_is_on_its_page(page: Path) -> None:
    """A newcomer finds the file for a question by the table of its folder."""
    text = FENCED.sub("", page.read_text())
    named = {word for span in QUOTED.findall(text) for word in WORD.findall(span)}
    modules = {path.stem for path in page.parent.glob("*.py") if not path.stem.startswith("__")}
    assert not modules - named


def test_links_lead_somewhere() -> None:
    """Every relative link of every page."""
    pages = [*ROOT.glob("*.md"), *PAGES, *ROOT.glob("conf/*.md"), *ROOT.glob("tests/**/README.md")]
    lost = [
        f"{name_of(page)}: {link}"
        for page in pages
        for link in LINK.findall(page.read_text())
        if not (page.parent / link).exists()
    ]
    assert not lost
