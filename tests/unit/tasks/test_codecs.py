"""Codecs: what a payload becomes, what is refused at the declaration, and errors that show no values."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from headgate import AesGcm, DeclarationError, Headgate, PayloadError, Zlib, Zstd
from headgate.jobs.encoded import codecs_of, is_encoded, read_encoded, shown_encoded
from headgate.tasks.codec import Codecs
from headgate.tasks.payload import PayloadType

KEY = AesGcm.new_key()
SECRET = "hunter2-swordfish"


class Backwards:
    """A codec as users write them."""

    name = "backwards"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


def pay(card: str, cents: int = 0) -> str:
    return card


def payload_type(*codecs: Any, old: Any = (), function: Any = pay, **options: Any) -> PayloadType:
    return PayloadType(function, "task 'pay'", codecs=Codecs(codecs, old), **options)


def test_a_stored_text_says_with_what_it_was_encoded_and_is_never_json() -> None:
    stored, arguments = payload_type(Backwards(), AesGcm("2026-11", KEY)).encode((SECRET,), {"cents": 5})
    assert stored.startswith("encoded:backwards+aes-gcm.2026-11:")
    assert is_encoded(stored)
    assert codecs_of(stored) == ("backwards", "aes-gcm.2026-11")
    assert shown_encoded(stored) == "[encoded: backwards, aes-gcm.2026-11]"
    assert SECRET.encode() not in read_encoded(stored).data
    assert arguments == {"card": SECRET, "cents": 5}


def compression(name: str, **options: Any) -> Any:
    if name == "zstd":
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
        return Zstd(**options)
    return Zlib(**options)


@pytest.mark.parametrize("name", ["zlib", "zstd"])
def test_a_payload_is_encoded_in_order_and_decoded_backwards(name: str) -> None:
    payload = payload_type(compression(name, above=1), Backwards())
    stored, _ = payload.encode(("ab" * 500,), {})
    assert codecs_of(stored) == (name, "backwards")
    assert len(stored) < 200
    assert payload.decode(stored) == ([], {"card": "ab" * 500})


@pytest.mark.parametrize("card", ["short", base64.b85encode(bytes(range(256)) * 8).decode()[:1500]])
@pytest.mark.parametrize("name", ["zlib", "zstd"])
def test_what_compression_would_not_shrink_is_stored_as_json(card: str, name: str) -> None:
    stored, _ = payload_type(compression(name)).encode((card,), {})
    assert not is_encoded(stored) or len(stored) < len(card)
    assert payload_type(compression(name)).decode(stored) == ([], {"card": card})


def test_damaged_zstd_is_an_error_and_a_wrong_level_is_refused() -> None:
    codec = compression("zstd")
    with pytest.raises(PayloadError, match="cannot be decoded with 'zstd': ZstdError"):
        payload_type(codec).decode("encoded:zstd:eJwr")
    with pytest.raises(DeclarationError, match="level=20"):
        Zstd(level=20)
    assert repr(codec) == "Zstd(1024, level=3)"


def test_zstd_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    with pytest.raises(DeclarationError, match=r"pip install \"headgate\[zstd\]\""):
        Zstd()


def test_results_are_encoded_too_but_none_is_not() -> None:
    payload = payload_type(AesGcm("k", KEY))
    stored = payload.encode_result(SECRET)
    assert is_encoded(stored)
    assert payload.decode_result(stored) == SECRET
    assert payload.encode_result(None) == "null"
    assert payload.decode_result("null") is None


def test_what_was_stored_before_there_was_a_codec_is_still_read() -> None:
    payload = payload_type(AesGcm("k", KEY))
    assert payload.decode('{"card":"x"}') == ([], {"card": "x"})
    assert payload.decode_result('"x"') == "x"


def test_an_old_codec_decodes_and_does_not_encode() -> None:
    new, old = AesGcm("2026-11", KEY), AesGcm("2026-05", AesGcm.new_key())
    stored, _ = payload_type(old).encode((SECRET,), {})
    rotated = payload_type(new, old=[old])
    assert rotated.decode(stored) == ([], {"card": SECRET})
    assert codecs_of(rotated.encode((SECRET,), {})[0]) == ("aes-gcm.2026-11",)
    without = payload_type(old=[old])
    assert without.decode(stored) == ([], {"card": SECRET})
    assert without.encode(("x",), {})[0] == '{"card":"x"}'


def test_the_same_payload_is_encrypted_differently_each_time() -> None:
    payload = payload_type(AesGcm("k", KEY))
    assert payload.encode((SECRET,), {})[0] != payload.encode((SECRET,), {})[0]


@pytest.mark.parametrize("upgrade", [None, lambda stored: stored])
def test_an_app_without_the_codec_says_which_one_it_lacks(upgrade: Any) -> None:
    stored, _ = payload_type(AesGcm("2026-11", KEY)).encode((SECRET,), {})
    with pytest.raises(PayloadError, match=r"encoded with 'aes-gcm\.2026-11', and this app has no codec; pass"):
        payload_type(upgrade=upgrade).decode(stored)
    with pytest.raises(PayloadError, match=r"encoded with 'aes-gcm\.2026-11', and this app has only 'zlib'"):
        payload_type(Zlib(), upgrade=upgrade).decode(stored)
    with pytest.raises(PayloadError, match=r"what task 'pay' returned cannot be decoded"):
        payload_type().decode_result(payload_type(AesGcm("2026-11", KEY)).encode_result(SECRET))


def test_another_key_under_the_same_id_is_an_error() -> None:
    stored, _ = payload_type(AesGcm("k", KEY)).encode((SECRET,), {})
    with pytest.raises(PayloadError, match="it was changed, or encrypted with another key of this id"):
        payload_type(AesGcm("k", AesGcm.new_key())).decode(stored)


def test_the_name_of_the_key_cannot_be_exchanged() -> None:
    stored, _ = payload_type(AesGcm("one", KEY)).encode((SECRET,), {})
    with pytest.raises(PayloadError, match="it was changed"):
        payload_type(AesGcm("two", KEY)).decode(stored.replace("aes-gcm.one", "aes-gcm.two"))


@pytest.mark.parametrize("damaged", ["encoded:", "encoded:zlib", "encoded:zlib:*", "encoded:zlib:eJ", "encoded:zlib:ü"])
def test_a_damaged_text_is_an_error(damaged: str) -> None:
    with pytest.raises(PayloadError, match="what is stored is damaged"):
        payload_type(Zlib()).decode(damaged)


# ------------------------------------------------------------------------------------------------------ declaring


class Waits(Backwards):
    async def encode(self, data: bytes) -> bytes:  # type: ignore[override]
        return data


class Nameless:
    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


class Spaced(Nameless):
    name = "two words"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (Backwards, r"codec=Backwards: pass an instance, Backwards\(…\), not the class"),
        (object(), r"codec: object is not a codec, it has no encode\(\)"),
        ([Backwards(), "zlib"], r"codec: str is not a codec, it has no decode\(\)"),
        (Waits(), "codec: encode of Waits is an async def; write a plain def"),
        (Nameless(), "codec: Nameless needs a name of 1 to 80 letters.*, not None"),
        (Spaced(), "codec: Spaced needs a name of .*, not 'two words'"),
        ([Zlib(), Zlib()], "two codecs are named 'zlib'"),
    ],
)
def test_what_is_no_codec_is_refused_when_the_app_is_made(given: Any, problem: str) -> None:
    with pytest.raises(DeclarationError, match=problem):
        Headgate("memory://", codec=given)


def test_an_app_takes_one_codec_or_several() -> None:
    for app in (
        Headgate("memory://", codec=Backwards()),
        Headgate("memory://", codec=[Zlib(), Backwards()], old_codecs=(AesGcm("k", KEY),)),
        Headgate("memory://", codec=(), old_codecs=[Backwards()]),
    ):
        payload = app.task(name="pay")(pay).payload
        stored, _ = payload_type(Backwards()).encode((SECRET,), {})
        assert payload.decode(stored) == ([], {"card": SECRET})


def test_an_old_codec_needs_another_name_than_the_present_one() -> None:
    with pytest.raises(DeclarationError, match=r"two codecs are named 'aes-gcm\.k'"):
        Headgate("memory://", codec=AesGcm("k", KEY), old_codecs=[AesGcm("k", AesGcm.new_key())])


@pytest.mark.parametrize("key", [b"short", "", "not base64 ü", base64.b64encode(bytes(16)).decode(), None, 7])
def test_a_wrong_key_is_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(DeclarationError, match="key 'k' must be 32 bytes") as refused:
        AesGcm("k", key)
    assert not key or str(key) not in str(refused.value).replace("32", "")


def test_a_key_is_bytes_or_base64_of_either_alphabet_and_never_in_a_repr() -> None:
    raw = bytes(range(224, 256))
    for key in (raw, base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode() + "\n"):
        codec = AesGcm("k", key)
        assert AesGcm("k", raw).decode(codec.encode(b"data")) == b"data"
        assert repr(codec) == "AesGcm('k', '…')"
    with pytest.raises(DeclarationError, match="key_id='a b' must be"):
        AesGcm("a b", raw)


# ----------------------------------------------------------------------------------------------------- failing


class Failing(Backwards):
    def encode(self, data: bytes) -> bytes:
        raise OSError("no HSM")

    def decode(self, data: bytes) -> bytes:
        return "text"  # type: ignore[return-value]


def test_a_codec_that_fails_is_named() -> None:
    with pytest.raises(
        PayloadError, match=r"payload of task 'pay' cannot be encoded with 'backwards': OSError: no HSM"
    ):
        payload_type(Failing()).encode((SECRET,), {})
    stored, _ = payload_type(Backwards()).encode((SECRET,), {})
    with pytest.raises(PayloadError, match="cannot be decoded with 'backwards': it returned a str, not bytes"):
        payload_type(Failing()).decode(stored)


class Color(Enum):
    RED = "red"


@dataclass
class Card:
    number: str

    def __post_init__(self) -> None:
        if not self.number.isdigit():
            raise ValueError(f"{self.number} is not a number")


def paint(color: Color) -> Color:
    return color


def charge(card: Card) -> Card:
    return card


def untyped(value: Any) -> dict[str, int]:
    return {}


@pytest.mark.parametrize(
    ("function", "stored"),
    [(paint, f'{{"color":"{SECRET}"}}'), (charge, f'{{"card":{{"number":"{SECRET}"}}}}'), (pay, f'["{SECRET}"]')],
)
@pytest.mark.parametrize("upgrade", [None, lambda stored: {**stored}])
def test_an_error_about_a_stored_payload_shows_no_value(function: Any, stored: str, upgrade: Any) -> None:
    def reads(*codecs: Any) -> str:
        with pytest.raises(PayloadError) as refused:
            payload_type(*codecs, function=function, upgrade=upgrade).decode(stored)
        assert not codecs or refused.value.__cause__ is None
        return str(refused.value)

    if not (function is pay and upgrade is None):
        assert SECRET in reads()
    assert SECRET not in reads(Zlib())


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (untyped, {SECRET}),
        (untyped, {SECRET: {1: 2}}),
        (untyped, {SECRET: object()}),
        (paint, SECRET),
        (untyped, (SECRET,)),
    ],
)
def test_an_error_about_a_new_payload_shows_no_value(function: Any, value: Any) -> None:
    for codecs, is_shown in (((), True), ((Zlib(),), False)):
        with pytest.raises(PayloadError) as refused:
            payload_type(*codecs, function=function).encode((value,), {})
        assert (SECRET in str(refused.value)) == is_shown


def test_an_error_about_options_that_were_passed_as_arguments_shows_no_argument() -> None:
    with pytest.raises(TypeError, match=r"write \.using\(delay=5\)\.enqueue\(…\)"):
        payload_type(Zlib()).encode((SECRET,), {"delay": 5})


@pytest.mark.parametrize(
    ("function", "value"), [(untyped, {"a": SECRET}), (paint, SECRET), (untyped, {SECRET: 1.5}), (charge, SECRET)]
)
def test_an_error_about_a_result_shows_no_value(function: Any, value: Any) -> None:
    with pytest.raises(PayloadError) as refused:
        payload_type(Zlib(), function=function).encode_result(value)
    assert SECRET not in str(refused.value)
    assert "task 'pay' returned" in str(refused.value)


def test_types_and_names_are_shown_all_the_same() -> None:
    with pytest.raises(PayloadError, match=r"Expected `str`, got `int` - at `\$\.card`"):
        payload_type(Zlib()).decode('{"card":7}')
    with pytest.raises(PayloadError, match="Object contains unknown field `owner`"):
        payload_type(Zlib()).decode('{"card":"7","owner":1}')
