"""The documentation as a site: it builds without a link that leads nowhere, and tells every message."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rljob_api.tests import http_server
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.run_page.tests.browser import dom_of, screenshot

CHECKOUT = Path(__file__).parents[1]
FRAMES = """
<iframe id="frame" style="border: 0" height="900"></iframe><pre id="too-wide"></pre>
<script>
const frame = document.getElementById("frame"), tooWide = document.getElementById("too-wide");
(async () => {
  for (const width of [1400, 400]) for (const page of PAGES) {
    frame.width = width;
    await new Promise(loaded => { frame.onload = loaded; frame.src = page; });
    const root = frame.contentDocument.documentElement;
    if (root.scrollWidth > root.clientWidth) tooWide.textContent += `${page} at ${width}, `;
  }
  tooWide.textContent += "all looked at";
})();
</script>
"""
"""A page that says which of PAGES have to be scrolled to the side."""
HOOKS = runpy.run_path(str(CHECKOUT / "docs" / "hooks.py"))


def built(config, out):
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5 * TEST_TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = built(CHECKOUT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_and_has_a_search_index_and_the_messages(site):
    page = (site / "troubleshooting" / "index.html").read_text()
    assert "a peer was lost or a deadline passed" in page
    assert "is not a condition; write FIELD" in page, "a message of the code"
    assert "its end has no checkpoint" not in page
    assert "troubleshooting" in (site / "search" / "search_index.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_the_site_has_the_colours_of_the_system_on_a_telephone(site, tmp_path, dark):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    with http_server.serving(server) as address:
        image = screenshot(f"{address}/python/", tmp_path / "profile", 400, dark=dark)
    red, green, blue = image.getpixel((5, 100))  # beside the title
    assert image.size == (400, 1500) and (max(red, green, blue) < 60 if dark else min(red, green, blue) > 240)
    assert len(image.getcolors(1_000_000)) > 50, "there is text"


def too_wide(site, profile):
    pages = [f"/{path.parent.relative_to(site)}/" for path in sorted(site.glob("**/index.html"))]
    assert len(pages) > 50
    (site / "frames.html").write_text(FRAMES.replace("PAGES", json.dumps(pages)))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site)))
    with http_server.serving(server) as address:
        dom = dom_of(f"{address}/frames.html", profile)
    return re.findall(r'<pre id="too-wide">(.*?)</pre>', dom)


@pytest.mark.slow
def test_no_page_of_the_site_is_wider_than_its_window(site, tmp_path):
    assert too_wide(site, tmp_path / "profile") == ["all looked at"]


@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    """The site has one page, and its hooks find no code next to it to read messages from."""
    (tmp_path / "docs").mkdir()
    shutil.copy(CHECKOUT / "docs" / "hooks.py", tmp_path / "docs")
    (tmp_path / "mkdocs.yml").write_text((CHECKOUT / "mkdocs.yml").read_text().partition("nav:\n  -")[0])
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md)")
    done = built(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0 and "gone.md" in done.stderr


def test_the_readme_lists_the_pages_of_the_site_under_their_titles():
    navigation = (CHECKOUT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = re.findall(r"- (?P<title>[^:\n]+): (?P<page>\S+\.md)", navigation)
    guides = (CHECKOUT / "README.md").read_text().partition("\n## Guides\n")[2].partition("\n## ")[0]
    assert re.findall(r"\[([^]]+)\]\(docs/([^)]+)\)", guides) == pages, "in the order of the site"


def test_the_readme_lists_every_example():
    table = (CHECKOUT / "README.md").read_text().partition("\n## Examples\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"\(examples/(.+?)\)", table)) == sorted(
        path.name for path in (CHECKOUT / "examples").glob("*.yaml")
    )


@pytest.mark.parametrize("page", [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))], ids=str)
def test_files_of_the_repository_that_a_page_names_or_links_to_are_there(page):
    rooms = "benchmarks|charts|client|crds|dockerfiles|docs|e2e|examples|mutation|operator|worker"
    named = re.findall(rf"`((?:{rooms})/[\w./-]+\.\w+)`", page.read_text())
    assert [name for name in named if not (CHECKOUT / name).exists()] == []
    linked = re.findall(r"\]\((?!\w+:)([^)#\s]+)", page.read_text())
    assert [name for name in linked if not (page.parent / name).exists()] == []


def test_messages_are_texts_with_marks_for_what_varies():
    code = """
raise InvalidJob(f"{path} exists already; choose another {name}{kind} or remove_it")
raise StorageError("disk full")
raise ValueError("of no known end, and so no message of a process")
"""
    result = list(HOOKS["raised"](ast.parse(code)))
    assert [(int(code), text) for code, text in result] == [
        (64, r"… exists already; choose another … or remove\_it")
    ], "short texts are parts of messages"


def test_what_is_not_in_the_site_is_named_and_not_linked():
    page = "[a](b.md) [the chart](../charts/rljob/README.md)."
    assert HOOKS["without_links_out"](page) == "[a](b.md) the chart (`charts/rljob/README.md`)."


def test_a_page_of_explanation_is_short_and_has_a_picture():
    explanation = (CHECKOUT / "mkdocs.yml").read_text().partition("- Explanation:")[2].partition("- Develop:")[0]
    names = re.findall(r": (\S+\.md)", explanation)
    assert len(names) > 10
    for name in names:
        page = (CHECKOUT / "docs" / name).read_text()
        assert len(page.split()) <= 900, name
        assert page.count("```text\n") >= 1, f"{name} has no picture"
