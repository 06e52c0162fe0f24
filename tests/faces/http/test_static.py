"""The files of the dashboard keep what its strict Content-Security-Policy and its sub-path ask of them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urljoin

import pytest

from headgate import Cron, Headgate, RateLimit
from headgate.http import dashboard
from headgate.http.static_files import LISTS, SCRIPT, STATIC, join_modules
from headgate.http.static_files import SHEETS as JOINED_SHEETS
from tests.faces.http.stage import EVERYBODY, client, make_app

MODULES = sorted(STATIC.rglob("*.js"))
SHEETS = sorted(STATIC.rglob("*.css"))
SHELL = STATIC / "index.html"


def names(paths: Sequence[Path]) -> list[str]:
    return [path.relative_to(STATIC).as_posix() for path in paths]


def test_the_shell_runs_and_styles_nothing_inline() -> None:
    page = SHELL.read_text()
    assert re.findall(r"<script(?![^>]*\ssrc=)[^>]*>|<style|\sstyle=|\son\w+=", page) == []


def test_the_shell_loads_its_files_from_where_it_is_mounted() -> None:
    page = SHELL.read_text()
    assert page.count('<base href="/">') == 1
    assert page.index("<base") < page.index("<link")


def test_each_list_is_shown_with_its_declared_columns() -> None:
    named = [name for module in MODULES for name in re.findall(r'\bdeclared\("(\w+)"', module.read_text())]
    assert sorted(named) == sorted(LISTS)


async def test_a_page_loads_three_files_that_have_every_module_and_every_sheet() -> None:
    async with make_app().open() as app, client(dashboard(app, auth=EVERYBODY)) as caller:
        page = await caller.get("/jobs")
        base = urljoin(str(page.url), re.findall(r'<base href="([^"]+)">', page.text)[0])
        named = re.findall(r'(?:src|href)="(static/[^"]+)"', page.text)
        assert len(named) == 3
        loaded: dict[str, str] = {}
        for address in named:
            answer = await caller.get(urljoin(base, address))
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
            loaded[address.rpartition("/")[2]] = answer.text
    # Nothing that is loaded loads more.
    more = r"^\s*(?:import|export)\b|\bimport\(\w|@import|url\("
    assert not re.findall(more, loaded["app.js"] + loaded["app.css"], re.MULTILINE)
    for module in MODULES:
        if module.name != SCRIPT:
            assert f"\n// {module.relative_to(STATIC / 'js').as_posix()}\n" in loaded["app.js"]
    assert sorted(f"css/{name}.css" for name in JOINED_SHEETS) == names(SHEETS)
    assert loaded["app.css"] == "\n".join((STATIC / f"css/{name}.css").read_text() for name in JOINED_SHEETS)


async def test_answers_are_compressed_for_clients_that_accept_it() -> None:
    async with make_app().open() as app, client(dashboard(app, auth=EVERYBODY)) as caller:
        await app.tasks["answer"].enqueue_many([(str(number),) for number in range(50)])
        (script,) = re.findall(r'src="(static/[^"]+/app\.js)"', (await caller.get("/")).text)
        for address in ("/api/v1/jobs?count=50", f"/{script}", "/jobs"):
            plain = await caller.get(address, headers={"Accept-Encoding": "br, gzip;q=0.0"})
            assert "content-encoding" not in plain.headers
            assert plain.headers["vary"] == "Accept-Encoding"
            async with caller.stream("GET", address, headers={"Accept-Encoding": "deflate, gzip;q=0.5"}) as answer:
                sent = b"".join([chunk async for chunk in answer.aiter_raw()])
            assert answer.headers["content-encoding"] == "gzip"
            assert int(answer.headers["content-length"]) == len(sent) < len(plain.content)
            assert gzip.decompress(sent) == plain.content
        # A small answer fits into a packet as it is, and a known page is not sent again.
        assert "content-encoding" not in (await caller.get("/api/v1/jobs/count")).headers
        page = await caller.get("/jobs")
        known = await caller.get("/jobs", headers={"If-None-Match": page.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")


def test_a_module_is_joined_after_those_that_it_imports_in_a_scope_of_its_own() -> None:
    sources = {
        "main.js": 'import "./deep/side.js";\nimport {\n  one,\n  two as second,\n} from "./deep/numbers.js";\n\n'
        "one(second);\n",
        "deep/numbers.js": "export function one() {}\nexport async function three() {}\nexport const two = 2;\n",
        "deep/side.js": 'import * as numbers from "./numbers.js";\n\nexport class Side {}\nconst one = numbers.two;\n',
    }
    assert join_modules(sources) == join_modules(dict(reversed(sources.items())))
    joined = join_modules(sources)
    places = [joined.index(f"\n// {path}\n") for path in ("deep/numbers.js", "deep/side.js", "main.js")]
    assert places == sorted(places)
    assert "return { one, three, two };" in joined
    assert 'const numbers = $modules["deep/numbers.js"];\nclass' not in joined
    assert 'const numbers = $modules["deep/numbers.js"];\n\nclass Side {}' in joined
    assert re.search(r'const \{\s+one,\s+two: second,\s+\} = \$modules\["deep/numbers\.js"\];', joined)


def test_comments_on_lines_of_their_own_and_indentation_are_left_out_and_nothing_else() -> None:
    source = """/** Of one line. */
export const one = 1;
  /**
   * Of many lines.
   * @type {any}
   */
export const two = /** @type {any} */ (one); // at the end
/** @param {any} x */ const three = (x) => x;
// More.
const text = "/** no comment */";
  const more = () => {
    return "  text";
  };
/** The last one. */
"""
    left = """const one = 1;
const two = /** @type {any} */ (one); // at the end
/** @param {any} x */ const three = (x) => x;
const text = "/** no comment */";
const more = () => {
return "  text";
};
"""
    assert f"(() => {{\n{left}\nreturn" in join_modules({"main.js": source})


def test_names_are_put_into_texts_as_they_are() -> None:
    """Without a function, `replace` reads `$&` in a name as the text that it replaces."""
    wrong = re.compile(r'\.replace(?:All)?\("\{\w+\}", \w+\)')
    assert [each for module in MODULES for each in wrong.findall(module.read_text())] == []


@pytest.mark.parametrize("module", MODULES, ids=names(MODULES))
def test_no_text_of_a_module_has_a_line_whose_indentation_would_be_left_out(module: Path) -> None:
    for line in module.read_text().splitlines():
        assert line.count("`") % 2 == 0, line


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ('import one from "./other.js";\n', "cannot be joined"),
        ("export default 1;\n", "cannot be joined"),
        ("export let count = 1;\n", "cannot be joined"),
        ('import "./absent.js";\n', "absent.js, which is not there"),
        ('import "./main.js";\n', "cycle"),
    ],
)
def test_a_module_that_cannot_be_joined_is_refused(source: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        join_modules({"main.js": source, "other.js": ""})


@pytest.mark.parametrize("module", MODULES, ids=names(MODULES))
def test_a_module_imports_what_is_there_and_by_relative_paths(module: Path) -> None:
    for name in re.findall(r"""(?:from|^import) ["']([^"']+)["']""", module.read_text(), re.MULTILINE):
        assert name.startswith("."), f"{module}: {name}"
        assert (module.parent / name).resolve().is_file(), f"{module}: {name}"


@pytest.mark.parametrize("module", MODULES, ids=names(MODULES))
def test_a_module_never_parses_data_as_markup_and_sends_no_request_elsewhere(module: Path) -> None:
    text = module.read_text()
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("module", MODULES, ids=names(MODULES))
def test_a_module_says_what_it_is_for(module: Path) -> None:
    assert module.read_text().startswith("/**")


@pytest.mark.parametrize("sheet", SHEETS, ids=names(SHEETS))
def test_a_stylesheet_loads_nothing_from_elsewhere(sheet: Path) -> None:
    for name in re.findall(r"url\(([^)]*)\)", sheet.read_text()):
        assert (sheet.parent / name.strip("\"'")).is_file(), f"{sheet}: {name}"


def test_the_code_that_empty_pages_show_runs() -> None:
    shown = [code for module in MODULES for code in re.findall(r"'(@app\.[^']+)'", module.read_text())]
    assert {re.split(r"\W", code)[2] for code in shown} == {"schedule", "task"}
    for code in shown:
        names = {"app": Headgate("memory://"), "Cron": Cron, "RateLimit": RateLimit}
        exec(f"{code}\nasync def sync(tenant: str = '') -> None: ...", names)
