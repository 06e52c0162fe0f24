"""Escaping of text that others wrote."""

import pytest

from headgate.escaping import indented, one_line, printable

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
