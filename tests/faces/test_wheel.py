"""What `pip install headgate` brings: the program, all files it needs, and the plugin for pytest."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from tests.faces.wheel import ROOT, installed_wheel, run

pytestmark = pytest.mark.slow

PAGES = "".join((ROOT / "docs" / name).read_text() for name in ("testing.md", "testing-kit.md"))
INI = """[pytest]
headgate_app = shop:app
addopts = -q -p no:randomly -p no:valkey -p no:xdist -p no:schemathesis -p no:hypothesispytest
filterwarnings = error
"""
ASYNCIO: list[str | Path] = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_wheel(tmp_path_factory)[0]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_wheel(tmp_path_factory)[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The examples of the pages on tests, each in the file that its first line names."""
    for block in re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None, f"this example does not say which file it is:\n{block}"
        (tmp_path / name[1]).write_text(block)
    (tmp_path / "pytest.ini").write_text(INI)
    return tmp_path


def test_every_file_beside_the_code_is_in_the_wheel(wheel: Path) -> None:
    there = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    needed = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert needed - there == set()
    assert {Path(name).suffix for name in needed} >= {".py", ".sql", ".lua", ".typed"}
    assert "_headgate_pytest.py" in there
    assert not [name for name in there if "conformance" in name], "the suites for stores are tests, and stay here"


def test_the_description_on_the_package_index_has_no_link_into_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (metadata,) = (name for name in content.namelist() if name.endswith("/METADATA"))
        description = content.read(metadata).decode()
    links = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", description)
    targets = [markdown or html for markdown, html in links]
    assert len(targets) > 30
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_the_installed_program_is_that_of_the_wheel(programs: Path, tmp_path: Path) -> None:
    where = run(programs / "python", "-c", "import headgate; print(headgate.__file__)", cwd=tmp_path).stdout
    assert where.startswith(str(programs.parent))
    assert re.search(r"\d+\.\d+", run(programs / "headgate", "--version", cwd=tmp_path).stdout)
    # The schema comes with it.
    opening = "from headgate import Headgate\nwith Headgate('sqlite:///jobs.db').sync: print('open')"
    ran = run(programs / "python", "-c", opening, cwd=tmp_path)
    assert ran.stdout == "open\n"


DASHBOARD = """
import asyncio, re, headgate, headgate.http, httpx

async def main():
    auth = headgate.http.CallbackAuth(lambda request: headgate.http.User("tests"))
    site = headgate.http.dashboard(headgate.Headgate("memory://"), auth=auth)
    wire = httpx.ASGITransport(site, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=wire, base_url="http://127.0.0.1") as browser:
        shell = await browser.get("/")
        assert shell.status_code == 200, shell.text
        loaded = re.findall(r'(?:src|href)="(static/[^"]+)"', shell.text)
        for name in loaded:
            found = await browser.get(f"/{name}")
            assert found.status_code == 200 and found.content, name
        print(headgate.http.__file__, *loaded)

asyncio.run(main())
"""


def test_the_dashboard_serves_its_page_and_modules_from_the_wheel(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "browse.py").write_text(DASHBOARD)
    where, *loaded = run(programs / "python", "browse.py", cwd=tmp_path).stdout.split()
    assert where.startswith(str(programs.parent))
    assert {name.rpartition("/")[2] for name in loaded} == {"theme.js", "app.css", "app.js"}


@pytest.mark.nightly
def test_the_examples_of_the_testing_pages_pass_with_it(programs: Path, project: Path) -> None:
    ran = run(programs / "python", "-m", "pytest", *ASYNCIO, ".", cwd=project)
    assert "7 passed" in ran.stdout


def test_a_run_without_pytest_asyncio_works_and_imports_nothing_of_headgate_by_itself(
    programs: Path, project: Path
) -> None:
    (project / "test_plain.py").write_text(
        "import sys\n\n"
        "def test_nothing_is_imported():\n"
        "    assert not [name for name in sys.modules if name.startswith('headgate')]\n"
    )
    others = ("asyncio", "anyio", "schemathesis", "hypothesispytest", "timeout")
    pytest_plain: list[str | Path] = [programs / "python", "-m", "pytest"]
    for plugin in others:
        pytest_plain += ["-p", f"no:{plugin}"]
    assert "1 passed" in run(*pytest_plain, "test_plain.py", cwd=project).stdout
    assert "4 passed" in run(*pytest_plain, "test_with_fixtures.py", cwd=project).stdout


def test_the_plugin_works_if_headgate_was_imported_before_pytest(programs: Path, project: Path) -> None:
    main = "import headgate, pytest, sys; sys.exit(pytest.main(['-W', 'error', *sys.argv[1:]]))"
    ran = run(programs / "python", "-c", main, *ASYNCIO, "test_with_fixtures.py", cwd=project)
    assert "4 passed" in ran.stdout


def test_a_test_without_an_app_is_asked_to_name_one(programs: Path, project: Path) -> None:
    ran = run(
        programs / "python",
        "-m",
        "pytest",
        *ASYNCIO,
        "-o",
        "headgate_app=",
        "test_with_fixtures.py",
        cwd=project,
        check=False,
    )
    assert ran.returncode == 1
    assert 'set headgate_app = "package.module:app"' in ran.stdout


def test_a_unittest_uses_the_kit_without_pytest(programs: Path, project: Path) -> None:
    (project / "test_case.py").write_text(
        "import unittest\n"
        "from headgate.testing import manual\n"
        "from shop import app, send_receipt\n"
        "class Receipts(unittest.TestCase):\n"
        "    def setUp(self):\n"
        "        self.jobs = self.enterContext(manual(app))\n"
        "    def test_it(self):\n"
        "        send_receipt.sync.enqueue(7)\n"
        "        self.jobs.assert_enqueued(send_receipt, 7)\n"
    )
    assert "OK" in run(programs / "python", "-m", "unittest", "test_case", cwd=project).stderr
