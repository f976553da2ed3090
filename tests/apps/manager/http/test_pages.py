"""The pages for people with a browser: no key, no script, nothing from elsewhere."""

import re
from base64 import b64encode
from hashlib import sha256

import aiohttp
import pytest

from gpu_orchestrator import __version__
from gpu_orchestrator.apps.manager.http import html
from tests.apps.manager.conftest import Site


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("# One\n\ntwo\nlines", '<h1 id="one">One</h1>\n<p>two lines</p>'),
        ("### `GET /tasks`", '<h3 id="get-tasks"><code>GET /tasks</code></h3>'),
        ("a <b> & `<c>`", "<p>a &lt;b&gt; &amp; <code>&lt;c&gt;</code></p>"),
        ("- [x](y)\n- z", '<ul><li><a href="y">x</a></li><li>z</li></ul>'),
        ("*Needs* is a * b", "<p><em>Needs</em> is a * b</p>"),
        ("[the guide](../security.md)", "<p>the guide</p>"),
        ("    one <\n      two", "<pre><code>one &lt;\n  two</code></pre>"),
        (
            "| a | b |\n|---|---|\n| `x\\|y` | 2 |",
            "<tbody><tr><td><code>x|y</code></td><td>2</td></tr></tbody></table>",
        ),
    ],
)
def test_markdown_is_rendered_and_escaped(markdown: str, shown: str) -> None:
    assert shown in html.page("t", markdown).decode()


def test_no_text_can_add_markup() -> None:
    page = html.page("</title><script>", "<script>x</script> [a](b\"onclick='c)").decode()
    assert "<script" not in page
    assert 'b"onclick' not in page


@pytest.mark.real
@pytest.mark.parametrize("prefix", ["", "/api/v1"])
async def test_pages_need_no_key_and_load_nothing(site: Site, prefix: str) -> None:
    async with aiohttp.ClientSession(site.running.url) as http:
        for path in ("/", "/docs"):
            async with http.get(prefix + path) as answer:
                text = await answer.text()
                assert (answer.status, answer.content_type) == (200, "text/html")
            policy = answer.headers["Content-Security-Policy"]
            style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0]
            assert policy.startswith("default-src 'none';")
            assert f"style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "<script" not in text
            assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", text)
            for target in re.findall(r'href="([^"]+)"', text):
                if target.startswith("#"):
                    assert f'id="{target[1:]}"' in text, target
                else:
                    async with http.get(f"{prefix}/{target}") as linked:
                        assert linked.status == 200, target
        async with http.get(f"{prefix}/") as answer:
            home = await answer.text()
        async with http.get(f"{prefix}/docs") as answer:
            docs = await answer.text()
    assert __version__ in home
    assert "gpu-orchestrator key show" in home
    assert "<code>POST /tasks/cancel</code>" in docs
    assert '<h3 id="taskstatus">' in docs
    assert "make api-docs" not in docs, "that is for those who change the code"


@pytest.mark.real
async def test_json_bodies_end_with_a_line_break(site: Site) -> None:
    for path in ("/health", "/tasks", "/tasks/unknown"):
        async with site.http.get(path) as answer:
            body = await answer.read()
        assert body.endswith(b"}\n")
        assert int(answer.headers["Content-Length"]) == len(body)
