"""Keys: which bucket a job uses."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, TypedDict

import pytest

from headgate.errors import DeclarationError
from headgate.limits.argument_fields import ArgumentFields, read_types
from headgate.limits.key import MAX_KEY, ONE_FOR_ALL, SHARED, bucket_key, compile_key, header

WHERE = "limit 15/m of task 'sync_tenant'"


@dataclass
class Order:
    tenant_id: str | None
    customer: dict[str, object] | None = None


def key_of(key: object, headers: dict[str, str] | None = None, **arguments: object) -> str:
    """The bucket that a job with these arguments uses."""
    compute = compile_key(key, tuple(arguments), WHERE)
    return bucket_key(compute(arguments, headers or {}))


def refusal(key: object, parameters: Sequence[str]) -> str:
    with pytest.raises(DeclarationError) as caught:
        compile_key(key, parameters, WHERE)
    assert WHERE in str(caught.value)
    return str(caught.value)


class Safe(str):
    """As texts of Django's templates: its text is itself."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


def test_a_key_of_a_subclass_of_text_is_stored_as_plain_text() -> None:
    """The enqueue raised TypeError: "Encoding objects of type SafeString is unsupported"."""
    assert type(bucket_key(Safe("acme"))) is str
    assert bucket_key(Safe("acme")) == "acme"


def test_no_key_is_one_bucket_for_all() -> None:
    assert key_of(None, tenant_id="acme") == ONE_FOR_ALL


def test_a_template_names_an_argument() -> None:
    assert key_of("{tenant_id}", tenant_id="acme", page=2) == "acme"


def test_a_template_names_an_argument_by_its_position() -> None:
    assert key_of("{0}", tenant_id="acme", page=2) == "acme"
    assert key_of("{1}", tenant_id="acme", page=2) == "2"


def test_a_template_names_a_field_of_an_argument() -> None:
    assert key_of("{order.tenant_id}", order=Order("acme")) == "acme"
    assert key_of("{0.tenant_id}", order=Order("acme")) == "acme"


def test_a_template_names_a_field_of_a_dict() -> None:
    assert key_of("{order.tenant_id}", order={"tenant_id": "acme"}) == "acme"


def test_a_template_follows_fields_through_objects_and_dicts() -> None:
    assert key_of("{order.customer.region.code}", order=Order("acme", {"region": {"code": 7}})) == "7"


def test_a_template_puts_text_and_fields_together() -> None:
    assert key_of("tenant:{tenant_id}/page:{page}", tenant_id="acme", page=2) == "tenant:acme/page:2"


def test_a_template_without_fields_is_one_bucket_of_that_name() -> None:
    assert key_of("billing", tenant_id="acme") == "billing"


def test_doubled_braces_are_plain_ones() -> None:
    assert key_of("{{billing}}", tenant_id="acme") == "{billing}"
    assert key_of("{{{tenant_id}}}", tenant_id="acme") == "{acme}"


def test_values_of_any_kind_become_text() -> None:
    assert key_of("{value}", value=42) == "42"
    assert key_of("{value}", value=0) == "0"
    assert key_of("{value}", value=False) == "False"


def test_keys_are_compared_exactly() -> None:
    assert len({key_of("{value}", value=value) for value in ("acme", "Acme", " acme", "acme ", "ácme")}) == 5


@pytest.mark.parametrize("key", ["{tenant_id}", "tenant:{tenant_id}", "{tenant_id}/{page}"])
def test_a_missing_part_makes_the_whole_key_empty(key: str) -> None:
    assert key_of(key, tenant_id=None, page=2) == ""


def test_a_missing_field_makes_the_key_empty() -> None:
    assert key_of("{order.tenant_id}", order=Order(None)) == ""
    assert key_of("{order.tenant_id}", order={}) == ""
    assert key_of("{order.tenant_id}", order=None) == ""
    assert key_of("{order.customer.id}", order=Order("acme")) == ""


def test_a_missing_attribute_is_an_error_of_the_key() -> None:
    with pytest.raises(AttributeError):
        key_of("{order.tenant}", order=Order("acme"))


def test_an_empty_text_is_an_empty_key() -> None:
    assert key_of("{tenant_id}", tenant_id="") == ""


@pytest.mark.parametrize("template", ["{tenant}", "{tenant.id}", "{}", "{order[tenant_id]}", "{tenant_id }"])
def test_an_unknown_argument_is_refused_at_declaration(template: str) -> None:
    message = refusal(template, ["tenant_id", "order"])
    assert template in message
    assert "tenant_id, order" in message


def test_an_argument_of_a_task_that_has_none_is_refused_at_declaration() -> None:
    assert "it has none" in refusal("{tenant_id}", [])


def test_a_position_beyond_the_arguments_is_refused_at_declaration() -> None:
    assert "names argument 2, but there are only 2: tenant_id, page" in refusal("{2}", ["tenant_id", "page"])


@pytest.mark.parametrize("template", ["{order.}", "{order..id}", "{order.1}", "{order.id[0]}"])
def test_a_path_that_is_no_path_is_refused_at_declaration(template: str) -> None:
    assert "not a dotted path" in refusal(template, ["order"])


@pytest.mark.parametrize("template", ["{page:03d}", "{page!r}", "{page!s:>5}"])
def test_formats_and_conversions_are_refused_at_declaration(template: str) -> None:
    assert "use plain fields" in refusal(template, ["page"])


@pytest.mark.parametrize("template", ["{tenant_id", "tenant_id}", "{"])
def test_a_template_that_cannot_be_read_is_refused_at_declaration(template: str) -> None:
    assert "cannot be read" in refusal(template, ["tenant_id"])


@pytest.mark.parametrize("key", [5, 1.5, ["{tenant_id}"], ["{tenant_id}", "{page}"], b"{tenant_id}"])
def test_a_value_that_is_no_key_is_refused_at_declaration(key: object) -> None:
    assert "is not a template, a callable, header(…) or None" in refusal(key, ["tenant_id"])


def test_a_callable_is_given_the_arguments_it_names() -> None:
    assert key_of(lambda page, tenant_id: f"{tenant_id}-{page}", tenant_id="acme", page=2) == "acme-2"
    assert key_of(lambda page: page % 10, tenant_id="acme", page=25) == "5"
    assert key_of(lambda: "always", tenant_id="acme") == "always"


def test_a_callable_may_take_its_arguments_by_name_or_by_position_only() -> None:
    def by_name(*, tenant_id: str, page: int) -> str:
        return f"{tenant_id}-{page}"

    def by_position(page: int, /, tenant_id: str) -> str:
        return f"{tenant_id}-{page}"

    assert key_of(by_name, tenant_id="acme", page=2) == "acme-2"
    assert key_of(by_position, tenant_id="acme", page=2) == "acme-2"


def test_a_callable_may_be_any_object_that_can_be_called() -> None:
    class Region:
        def __call__(self, tenant_id: str) -> str:
            return tenant_id[:2]

    def by_region(region: str, tenant_id: str) -> str:
        return f"{region}-{tenant_id}"

    assert key_of(Region(), tenant_id="eu-acme") == "eu"
    assert key_of(functools.partial(by_region, "eu"), tenant_id="acme") == "eu-acme"


def test_a_callable_that_returns_none_gives_an_empty_key() -> None:
    assert key_of(lambda tenant_id: None, tenant_id="acme") == ""


def test_a_callable_that_asks_for_an_unknown_argument_is_refused_at_declaration() -> None:
    assert "has unknown parameters: tenant, x; it may have: tenant_id, page" in refusal(
        lambda tenant, x, page: "", ["tenant_id", "page"]
    )


def test_a_callable_that_asks_for_anything_is_refused_at_declaration() -> None:
    assert "has unknown parameters: args, kwargs" in refusal(lambda *args, **kwargs: "", ["tenant_id"])


def test_a_callable_whose_arguments_cannot_be_read_is_refused_at_declaration() -> None:
    assert "cannot be read" in refusal(dict, ["tenant_id"])


def test_a_header_is_read_from_the_job() -> None:
    assert key_of(header("customer"), {"customer": "acme", "tenant": "other"}, page=2) == "acme"


def test_the_default_header_is_the_tenant() -> None:
    assert key_of(header(), {"tenant": "acme"}, page=2) == "acme"


@pytest.mark.parametrize("headers", [{}, {"other": "acme"}, {"tenant": ""}])
def test_jobs_without_the_header_share_a_bucket(headers: dict[str, str]) -> None:
    assert key_of(header(), headers, page=2) == SHARED == "global"


def test_a_key_of_the_full_length_is_kept_as_it_is() -> None:
    assert key_of("{value}", value="k" * MAX_KEY) == "k" * 256


def test_a_longer_key_is_hashed() -> None:
    long = "k" * (MAX_KEY + 1)
    assert key_of("{value}", value=long) == "sha256:" + hashlib.sha256(long.encode()).hexdigest()


def test_long_keys_that_differ_at_their_end_stay_apart() -> None:
    assert key_of("{value}", value="k" * 1000 + "a") != key_of("{value}", value="k" * 1000 + "b")


def test_a_long_key_that_is_no_valid_unicode_is_hashed_all_the_same() -> None:
    assert key_of("{value}", value="\udcff" * 300).startswith("sha256:")


@pytest.mark.parametrize(
    "annotation", ["set[str]", "frozenset", "dict[str, int]", "set[str] | None", "Annotated[set[str], 1]", "Regions"]
)
def test_a_template_that_names_a_set_or_a_dict_is_refused_at_declaration(annotation: str) -> None:
    class Regions(TypedDict):
        eu: int

    def function(regions: object) -> None: ...

    function.__annotations__["regions"] = eval(annotation, {"Regions": Regions, "Annotated": Annotated})
    with pytest.raises(DeclarationError, match=r"has no order.*key=lambda regions: \",\".join\(sorted\(regions\)\)"):
        compile_key("{regions}", ["regions"], "a test", ArgumentFields(read_types(function)))


@dataclass
class Shipment:
    regions: set[str]
    counts: dict[str, int]


REGIONS = ["eu", "us", "asia", "africa"]


def test_the_key_of_what_has_no_order_is_sorted_json() -> None:
    one = Shipment(set(REGIONS), dict.fromkeys(REGIONS, 1))
    other = Shipment({*REGIONS[2:], *REGIONS[:2]}, dict.fromkeys(reversed(REGIONS), 1))
    text = '{"counts":{"africa":1,"asia":1,"eu":1,"us":1},"regions":["africa","asia","eu","us"]}'
    assert key_of("{value}", value=one) == key_of("{value}", value=other) == text
    assert key_of("of {value.regions}", value=one) == 'of ["africa","asia","eu","us"]'
    assert key_of(lambda value: value.counts, value=one) == '{"africa":1,"asia":1,"eu":1,"us":1}'
    assert key_of("{value}", value=[one.regions, MappingProxyType(one.counts)]) == (
        '[["africa","asia","eu","us"],{"africa":1,"asia":1,"eu":1,"us":1}]'
    )


def test_a_value_with_a_text_of_its_own_keeps_it() -> None:
    class Named(Shipment):
        def __str__(self) -> str:
            return "named"

    assert key_of("{value}", value=Named(set(), {})) == "named"
