"""README.md and docs/: their links lead somewhere, and what they tell to run is there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.conftest import ROOT
from trtconvert.cli import cli

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def prose(page: Path) -> str:
    """The page without its blocks of code, where # is no heading and ]( no link."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"(?m)^    .*$", "", text)


def anchors(page: Path) -> set[str]:
    """Of the page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", prose(page))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each trtconvert command line, in blocks and between backticks."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^ {4}\$ (trtconvert .*)$", text) + re.findall(r"`(trtconvert [^`]*)`", text)
    return (shlex.split(line, comments=True)[1:] for line in lines)


@page
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in link]
    assert page != README or len(links) > len(PAGES)
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_readme_leads_to_every_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert not [p.name for p in PAGES[1:] if f"](docs/{p.name}" not in text]
    assert len(text.splitlines()) <= 300, "what is long goes into docs/"


@page
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        command: click.Command = cli
        rest = list(words)
        while rest and isinstance(command, click.Group):
            name = rest.pop(0).split("|")[0]
            found = command.get_command(click.Context(command), name)
            assert found is not None, " ".join(words)
            command = found
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert used <= known, (" ".join(words), used - known)


def test_options_in_the_table_of_commands_exist() -> None:
    rows = re.findall(r"(?m)^\| `(\w+) [^`]*` \| (.*) \|$", README.read_text(encoding="utf-8"))
    assert {name for name, _ in rows} >= {"build", "fuse", "verify", "refit", "bench", "inspect"}
    for name, told in rows:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert set(re.findall(r"`(--?[a-z][a-z-]*)", told)) <= known, name


@page
def test_modules_and_python_are_sound(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module in set(re.findall(r"python3? -m ((?:tests|trtconvert)[\w.]*)", text)):
        assert importlib.util.find_spec(module) is not None, module
    for path in set(re.findall(r"`((?:tests|plugins|kernels|docker|trtconvert)/[\w./-]+)`", text)):
        assert (ROOT / path).exists(), path
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, page.name, "exec")


def test_continuous_integration_finds_its_two_commands() -> None:
    """.ci/run takes the first two blocks of README.md."""
    install, check = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[:2]
    assert "trtconvert build sample_models/" in install
    assert "pytest" in check


def test_every_module_has_its_place_in_the_table() -> None:
    table = README.read_text(encoding="utf-8").partition("## Where things are")[2]
    named = set(re.findall(r"`([\w/]+)`", table))
    there = {
        p.stem if p.is_file() else f"{p.name}/" for p in (ROOT / "trtconvert").iterdir() if p.suffix in (".py", "")
    }
    missing = {name for name in there - named if not name.startswith("__")}
    assert not missing
