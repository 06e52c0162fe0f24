"""Check that every relative link in the project's Markdown pages points to something that exists."""

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
ELSEWHERE = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*:|//|#)")


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
    sys.stdout.write(f"The relative links of {len(pages)} pages all lead somewhere.\n")


def relative_links(page: Path) -> Iterator[tuple[int, str]]:
    """Line number and target of each link that stays inside the project; code samples are left out."""
    fence = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        mark = FENCE.match(line)
        if mark and fence in (None, mark[1]):
            fence = None if fence else mark[1]
        elif fence is None:
            prose = CODE_SPAN.sub("", line)
            targets = INLINE_LINK.findall(prose) + LINK_DEFINITION.findall(prose)
            yield from ((number, target) for target in targets if not ELSEWHERE.match(target))


def exists(page: Path, target: str) -> bool:
    """Whether the target, its anchor left out, is a file or folder of the project."""
    path = (page.parent / unquote(target.partition("#")[0])).resolve()
    return path.is_relative_to(ROOT) and path.exists()


if __name__ == "__main__":
    main()
