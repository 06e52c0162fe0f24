"""Escaping of text that others wrote."""

import pytest

from headgate.escaping import as_fields, indented, one_line, printable

STEERING = "\x1b\x07\r\x00\x9b\u202e\u2066\u200b\u2028\ufeff"


def test_one_line_stays_one_line_and_readable() -> None:
    assert one_line("order 5\n2026-01-01 ERROR forged\tü日本") == r"order 5\n2026-01-01 ERROR forged\tü日本"


@pytest.mark.parametrize("char", STEERING)
def test_control_and_direction_characters_are_removed(char: str) -> None:
    for escape in (one_line, printable, indented):
        assert char not in escape(f"before{char}after")
        assert escape(f"before{char}after") == f"before{repr(char)[1:-1]}after"


def test_lines_after_the_first_are_indented() -> None:
    assert indented("first\n2026-01-01 ERROR forged") == "first\n    2026-01-01 ERROR forged"
    assert printable("first\nsecond") == "first\nsecond"


def test_fields_of_a_line_are_bare_or_quoted_and_forge_no_others() -> None:
    found = as_fields(limit="stripe", key='a b" key=x\n]', other="", at="2026-01-01T00:00:01.000+00:00", count=3)
    assert found == r'limit=stripe key="a b\" key=x\\n]" other="" at=2026-01-01T00:00:01.000+00:00 count=3'
