"""Codecs as properties: every payload returns, under every rotation, and no changed byte is decoded."""

from __future__ import annotations

import binascii
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AesGcm, PayloadError, Zlib
from headgate.jobs.encoded import codecs_of, is_encoded, read_encoded, write_encoded
from headgate.tasks.codec import Codecs
from headgate.tasks.payload import PayloadType

KEYS = {id: AesGcm(id, AesGcm.new_key()) for id in ("2025-05", "2025-11", "2026-05", "2026-11")}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


def work(value: Any) -> Any: ...


def payload_type(codecs: list[Any], old: list[Any] | None = None) -> PayloadType:
    return PayloadType(work, "task 'work'", codecs=Codecs(codecs, old or []))


@given(values, st.lists(st.sampled_from(sorted(KEYS)), unique=True), st.none() | st.integers(1, 300))
def test_every_payload_and_result_returns(value: Any, keys: list[str], above: int | None) -> None:
    codecs: list[Any] = [*([] if above is None else [Zlib(above)]), *(KEYS[key] for key in keys)]
    payload = payload_type(codecs)
    stored, _ = payload.encode((value,), {})
    assert payload.decode(stored) == ([], {"value": value})
    assert is_encoded(stored) or not keys
    result = payload.encode_result(value)
    assert payload.decode_result(result) == value
    child = payload.in_clear()
    assert child.decode(payload.for_child(stored)) == ([], {"value": value})
    assert payload.decode_result(payload.stored_result(child.encode_result(value))) == value


@given(values, st.permutations(sorted(KEYS)))
def test_a_payload_is_read_under_each_rotation_that_keeps_its_key(value: Any, order: list[str]) -> None:
    first, *others = (KEYS[id] for id in order)
    stored, _ = payload_type([first]).encode((value,), {})
    for number, present in enumerate(others):
        rotated = payload_type([present], [first, *others[:number]])
        assert rotated.decode(stored) == ([], {"value": value})
        assert codecs_of(rotated.encode((value,), {})[0]) == (present.name,)
    with pytest.raises(PayloadError, match=f"encoded with '{first.name}'"):
        payload_type(others[:1]).decode(stored)


@given(values, st.data())
def test_no_changed_or_cut_bytes_are_decrypted(value: Any, data: st.DataObject) -> None:
    codec = KEYS["2026-11"]
    payload = payload_type([codec])
    names, encrypted = read_encoded(payload.encode((value,), {})[0])
    changed = bytearray(encrypted)
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(changed), encrypted[:place], encrypted + b"\0"):
        with pytest.raises(PayloadError, match="it was changed"):
            payload.decode(write_encoded(names, bad))


@given(values, st.data())
def test_a_cut_or_changed_text_is_an_error_or_the_payload(value: Any, data: st.DataObject) -> None:
    codecs = [Zlib(1), KEYS["2026-11"]]
    payload = payload_type(codecs)
    stored, _ = payload.encode((value,), {})
    place = data.draw(st.integers(len("encoded:"), len(stored) - 1))
    other = data.draw(st.characters(codec="utf-8"))
    for bad in (stored[:place], stored[:place] + other + stored[place + 1 :]):
        if bad != stored:
            with pytest.raises(PayloadError):
                payload.decode(bad)


@given(st.binary())
def test_what_was_never_compressed_is_an_error(data: bytes) -> None:
    payload = payload_type([Zlib(1)])
    with pytest.raises(PayloadError):
        payload.decode(f"encoded:zlib:{binascii.b2a_base64(data, newline=False).decode()}")


@given(values, values)
def test_digests_compare_contents_however_they_are_encoded(one: Any, other: Any) -> None:
    key, old = KEYS["2026-11"], KEYS["2026-05"]
    codecs = Codecs([Zlib(1), key], [old])
    written = [PayloadType(work, "w", codecs=each).encode((value,), {})[0] for each in (codecs, Codecs(old), Codecs())
               for value in (one, other)]  # fmt: skip
    digests = [codecs.digest(text, "it") for text in written]
    assert len(set(digests[::2])) == len(set(digests[1::2])) == 1
    is_equal = PayloadType(work, "w").encode((one,), {})[0] == PayloadType(work, "w").encode((other,), {})[0]
    assert (digests[0] == digests[1]) == is_equal
    # Without the key it cannot be computed, with another one it differs.
    assert digests[0] not in (Codecs().digest(written[4], "it"), Codecs(old).digest(written[4], "it"))
