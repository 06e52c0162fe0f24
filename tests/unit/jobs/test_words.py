"""Tags: which words are tags, and what is said of others."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import DeclarationError
from headgate.jobs.words import LONGEST_TAG, MOST_TAGS, parse_tags


def test_tags_are_sorted_and_each_is_kept_once() -> None:
    assert parse_tags(["vip", "import", "vip"], "task 'f'") == ("import", "vip")
    assert parse_tags({"customer:42", "größe", "a/b@c+d#e=f.g-h_1"}, "task 'f'") == (
        "a/b@c+d#e=f.g-h_1",
        "customer:42",
        "größe",
    )
    assert parse_tags((), "task 'f'") == ()
    assert len(parse_tags([str(number) for number in range(MOST_TAGS)], "task 'f'")) == MOST_TAGS


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("vip", r"""^task 'f': tags='vip' is not a list of tags; write tags=\["vip"\]$"""),
        (7, "tags=7 is not a list"),
        ([7], "tag 7 must be a word of letters, digits and"),
        ([""], "tag '' must be a word of letters, digits and"),
        (["ok", "two words"], r"tag 'two words' must be a word .*; write 'two-words'$"),
        (["vip!"], "write 'vip'$"),
        (['a"b', "ok"], "write 'a-b'$"),
        (["a,b"], "write 'a-b'$"),
        (["a]"], "write 'a'$"),
        (["\x00"], r"tag '\\x00' must be a word"),
        (["x" * (LONGEST_TAG + 1)], f"has {LONGEST_TAG + 1} characters, more than {LONGEST_TAG}; shorten it"),
        ([str(number) for number in range(MOST_TAGS + 1)], f"has {MOST_TAGS + 1} tags, more than {MOST_TAGS}; put"),
    ],
)
def test_an_invalid_tag_is_an_error_that_says_what_to_write(tags: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        parse_tags(tags, "task 'f'")
