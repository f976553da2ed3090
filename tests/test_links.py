"""Links in the documentation lead somewhere, and the menu of the site has every page."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from scripts.docs_site import pages
from tests.support.paths import ROOT

SOURCES = pages.sources()


@cache
def text(source: str) -> str:
    return (ROOT / source).read_text()


def menu() -> list[str]:
    """Return the pages in the menu of the site, by their path there."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return [
        page
        for section in site["nav"]
        for listed in section.values()
        for each in listed
        for page in each.values()
    ]


def broken(source: str) -> list[str]:
    wrong = []
    for link in pages.links(text(source)):
        file = pages.resolve(source, link.path)
        if file.startswith("..") or not (ROOT / file).exists():
            wrong.append(f"{source}:{link.line}: there is no {file}")
        elif link.anchor and link.anchor not in pages.anchors(text(file)):
            wrong.append(f"{source}:{link.line}: {file} has no heading #{link.anchor}")
    return wrong


@pytest.mark.parametrize("source", SOURCES)
def test_links_lead_to_files_and_headings(source: str) -> None:
    assert not broken(source), "\n".join(broken(source))


def test_every_page_is_in_the_menu_once() -> None:
    wanted = sorted(pages.on_site(each) for each in SOURCES if not each.startswith(f"{pages.DECISIONS}/"))
    assert sorted(menu()) == sorted([*wanted, "decisions/index.md"]), "bring `nav` in mkdocs.yml up to date"


def test_each_decision_has_a_number_of_its_own() -> None:
    files = [Path(each) for each in SOURCES if each.startswith(f"{pages.DECISIONS}/")]
    numbers = [file.name[:4] for file in files]
    assert sorted(numbers) == sorted(set(numbers))
    assert [
        number for number, file in zip(numbers, files, strict=True) if number not in text(str(file))[:8]
    ] == []


def test_every_page_is_linked_to_from_another() -> None:
    """The code host has no menu: a reader gets to a page by links alone."""
    linked = {
        pages.resolve(source, link.path)
        for source in SOURCES
        for link in pages.links(text(source))
        if pages.resolve(source, link.path) != source
    }
    listed = {each for each in SOURCES if str(Path(each).parent) in linked}  # its folder is linked to
    assert not set(SOURCES) - linked - listed - {"README.md"}


def test_pictures_have_a_description() -> None:
    without = [source for source in SOURCES if re.search(r"!\[\s*\]\(", text(source))]
    assert not without


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Limits, quotas and fair share", "limits-quotas-and-fair-share"),
        ("… test in a real container", "-test-in-a-real-container"),
        ("`gpu-orchestrator up --simulate 4`", "gpu-orchestrator-up---simulate-4"),
        ("`GET /tasks/{task_id}`", "get-taskstask_id"),
        ("See [the map](architecture.md)", "see-the-map"),
    ],
)
def test_anchor_is_that_of_a_code_host(heading: str, anchor: str) -> None:
    assert pages.anchors(f"## {heading}\n") == {anchor}


def test_second_heading_of_equal_text_has_a_number() -> None:
    assert pages.anchors("# A\n## Metrics\n## Metrics\n") == {"a", "metrics", "metrics-1"}


def test_code_has_no_links_and_no_headings() -> None:
    page = "# Title\n```sh\n# [a](b.md)\n```\n`[c](d.md)` and [e](f.md#g)\n"
    assert [link.target for link in pages.links(page)] == ["f.md#g"]
    assert pages.links(page)[0].line == 5
    assert pages.anchors(page) == {"title"}


@pytest.mark.parametrize(
    ("source", "written", "on_site"),
    [
        ("README.md", "docs/cli.md#tasks", "cli.md#tasks"),
        ("README.md", "docs/decisions", "decisions/index.md"),
        ("docs/cli.md", "../README.md", "index.md"),
        ("docs/cli.md", "../examples/claimed-pod.yaml", "files/examples/claimed-pod.yaml.txt"),
        ("docs/reference/api.md", "../security.md", "../security.md"),
        ("docs/reference/api.md", "../../CONTRIBUTING.md", "../contributing.md"),
        ("docs/decisions/0002-dependencies.md", "0003-own-kube-client.md", "0003-own-kube-client.md"),
        ("docs/cli.md", "gone.md", "gone.md"),
        ("docs/cli.md", "https://example.com/a.md", "https://example.com/a.md"),
    ],
)
def test_links_are_written_for_the_site(source: str, written: str, on_site: str) -> None:
    assert pages.relinked(f"[a]({written})\n", source) == f"[a]({on_site})\n"
