"""Check that every relative link in the project's Markdown pages points to a file and a heading that exist."""

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent

FENCE = re.compile(r"^\s*(```|~~~)")
CODE_SPAN = re.compile(r"(`+).+?\1")
INLINE_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'(][^)]*)?\)")
LINK_DEFINITION = re.compile(r"^\s{0,3}\[[^\]]+\]:\s*<?([^\s>]+)>?")
ELSEWHERE = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*:|//)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")


def main() -> None:
    pages = [page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if page.exists()]
    pages += sorted((ROOT / "docs").rglob("*.md"))
    broken = [
        f"{page.relative_to(ROOT)}:{line}: {target} does not exist"
        for page in pages
        for line, target in relative_links(page)
        if not exists(page, target)
    ]
    if broken:
        sys.exit("\n".join(broken))
    sys.stdout.write(f"The relative links of {len(pages)} pages lead to files and headings that exist.\n")


def relative_links(page: Path) -> Iterator[tuple[int, str]]:
    """Return line number and target of each link that stays inside the project; code samples are left out."""
    for number, line in prose_of(page):
        prose = CODE_SPAN.sub("", line)
        targets = INLINE_LINK.findall(prose) + LINK_DEFINITION.findall(prose)
        yield from ((number, target) for target in targets if not ELSEWHERE.match(target))


def prose_of(page: Path) -> Iterator[tuple[int, str]]:
    """Return the numbered lines of a page outside of its code samples."""
    fence = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        mark = FENCE.match(line)
        if mark and fence in (None, mark[1]):
            fence = None if fence else mark[1]
        elif fence is None:
            yield number, line


def exists(page: Path, target: str) -> bool:
    """Return whether the target is a file or folder of the project that has the heading of its anchor."""
    name, _, anchor = unquote(target).partition("#")
    path = (page.parent / name).resolve() if name else page
    if not (path.is_relative_to(ROOT) and path.exists()):
        return False
    return not anchor or path.suffix != ".md" or anchor in anchors_of(path)


@functools.cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and as MkDocs spell them."""
    anchors: set[str] = set()
    for _, line in prose_of(page):
        if heading := HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            kept = re.sub(r"[^\w\s-]", "", text.lower())
            anchors |= {re.sub(r"\s", "-", kept), re.sub(r"[-\s]+", "-", kept)}
    return anchors


if __name__ == "__main__":
    main()
