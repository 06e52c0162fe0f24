"""A key that names no argument and no field is refused where it is declared, and shows the nearest spelling."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from headgate import (
    Concurrency,
    DeclarationError,
    DynamicWindow,
    Handler,
    Headgate,
    Mutex,
    RateLimit,
    StrictRate,
    batch,
    header,
)
from headgate.jobs.event import LimitSkipped
from headgate.limits.limit import Limit
from headgate.limits.redis.gated_task import GatedTask
from tests.internals import store_of

T = TypeVar("T")


@dataclass
class Tenant:
    id: str
    region: str = "eu"


@dataclass
class DataOrder:
    tenant: str
    number: int = 1
    owner: Tenant | None = None

    @property
    def shard(self) -> str:
        return self.tenant[:1]

    @cached_property
    def letters(self) -> int:
        return len(self.tenant)

    def compute(self) -> str:
        return self.tenant


class StructOrder(msgspec.Struct):
    tenant: str
    number: int = 1
    owner: Tenant | None = None


@attrs.define
class AttrsOrder:
    tenant: str
    number: int = 1
    owner: Tenant | None = None


class ModelOrder(pydantic.BaseModel):
    tenant: str
    number: int = 1
    owner: Tenant | None = None


class DictOrder(TypedDict):
    tenant: str
    number: int
    owner: NotRequired[Tenant]


class TupleOrder(NamedTuple):
    tenant: str
    number: int = 1
    owner: Tenant | None = None


@dataclass
class Page(Generic[T]):
    item: T
    tenant: str
    extra: dict[str, Any] = field(default_factory=dict)


KINDS: list[Any] = [DataOrder, StructOrder, AttrsOrder, ModelOrder, DictOrder, TupleOrder]

OrderId = NewType("OrderId", TupleOrder)


def declare(app: Headgate, kind: Any, *limits: Limit | str, name: str = "work") -> Any:
    async def work(o: Any, page: int = 1) -> None: ...

    work.__annotations__ = {"o": kind, "page": int, "return": None}
    return app.task(name=name, limits=list(limits))(work)


@pytest.fixture
def app() -> Headgate:
    return Headgate("memory://")


MISSPELT = r"names 'o.tennant', but \w+ has no field 'tennant'; it has: .*tenant.*; write \{o\.tenant\}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelt_field_is_refused_with_the_fields_there_are(app: Headgate, kind: Any) -> None:
    for limit in (
        StrictRate("15/m", key="{o.tennant}"),
        RateLimit("15/m", key="tenant:{o.tennant}"),
        RateLimit("15/m", key="{0.tennant}"),
        DynamicWindow(per=60, count=5, key="{o.tennant}"),
        Concurrency(3, key="{o.tennant}"),
        Mutex("orders:{o.tennant}"),
        Concurrency(3, owner="{o.tennant}"),
        StrictRate("15/m", cost="{o.tennant}"),
    ):
        with pytest.raises(DeclarationError, match=MISSPELT.replace("'o.tennant'", r"'[o0]\.tennant'")):
            declare(app, kind, limit)
    assert not app.tasks


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_are_there_are_taken(app: Headgate, kind: Any) -> None:
    for number, path in enumerate(("o.tenant", "o.number", "o.owner.id", "0.owner.region", "page", "1")):
        declare(app, kind, StrictRate("15/m", key=f"{{{path}}}"), name=f"work-{number}")
    with pytest.raises(DeclarationError, match=r"Tenant has no field 'regoin'; it has: id, region; write \{o.owner.re"):
        declare(app, kind, StrictRate("15/m", key="{o.owner.regoin}"))


@pytest.mark.parametrize(
    "kind",
    [
        StructOrder | None,
        Annotated[StructOrder, "of a shop"],
        OrderId,
        Annotated[OrderId | None, "either"],
        StructOrder | int,
    ],
)
def test_wrappers_of_types_are_unwrapped(app: Headgate, kind: Any) -> None:
    declare(app, kind, StrictRate("15/m", key="{o.tenant}"), name="right")
    with pytest.raises(DeclarationError, match=r"has no field 'tennant'"):
        declare(app, kind, StrictRate("15/m", key="{o.tennant}"))


@pytest.mark.parametrize("kind", [Any, object, dict, dict[str, Any], Mapping[str, object], list[Any] | dict[str, Any]])
def test_a_field_of_a_type_without_known_fields_is_accepted(app: Headgate, kind: Any) -> None:
    declare(app, kind, StrictRate("15/m", key="{o.whatever.there.is}" if kind is not dict else "{o.any}"))


def test_the_types_of_dict_values_are_checked(app: Headgate) -> None:
    declare(app, dict[str, StructOrder], StrictRate("15/m", key="{o.first.tenant}"), name="right")
    with pytest.raises(DeclarationError, match="StructOrder has no field 'tennant'"):
        declare(app, dict[str, StructOrder], StrictRate("15/m", key="{o.first.tennant}"))


@pytest.mark.parametrize(
    ("kind", "path", "message"),
    [
        (str, "o.tenant", "str has no field 'tenant'; it has no fields"),
        (int, "o.value", "int has no field 'value'"),
        (UUID, "o.hexx", "UUID has no field 'hexx'"),
        (list[StructOrder], "o.tenant", "list has no field 'tenant'"),
        (Literal["a", "b"], "o.value", "str has no field 'value'"),
        (datetime, "o.date", "'date' is a method of datetime"),
        (DataOrder, "o.compute", "'compute' is a method of DataOrder"),
    ],
)
def test_a_field_that_no_value_of_the_type_has_is_refused(app: Headgate, kind: Any, path: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(message)):
        declare(app, kind, StrictRate("15/m", key=f"{{{path}}}"))


def test_what_a_class_computes_is_a_field_too(app: Headgate) -> None:
    class Color(Enum):
        RED = "red"

    for number, (kind, path) in enumerate(
        [(DataOrder, "o.shard"), (DataOrder, "o.letters"), (datetime, "o.year"), (UUID, "o.hex"), (Color, "o.value")]
    ):
        declare(app, kind, StrictRate("15/m", key=f"{{{path}}}"), name=f"work-{number}")


def test_a_model_that_takes_more_than_its_fields_may_have_any(app: Headgate) -> None:
    class Open(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        tenant: str

    declare(app, Open, StrictRate("15/m", key="{o.tennant}"))


def test_unresolved_types_are_checked_as_far_as_possible(app: Headgate) -> None:
    # Nothing has the name that its field is annotated with.
    later: Any = attrs.make_class("Later", {"tenant": attrs.field(type=str), "owner": attrs.field()})
    later.__annotations__["owner"] = "NotThereYet"

    gated = GatedTask("task", StrictRate("15/m", key="{o.tenant}"), _function({"o": later}))
    assert gated.line([later("acme", None)], {}) is not None
    GatedTask("task", StrictRate("15/m", key="{o.owner.anything}"), _function({"o": later}))
    declare(app, Page[StructOrder], StrictRate("15/m", key="{o.item.tenant}"))
    with pytest.raises(DeclarationError, match=r"Page has no field 'itm'; .* item, tenant; write \{o\.item\}"):
        declare(app, Page[StructOrder], StrictRate("15/m", key="{o.itm.tenant}"), name="wrong")


def _function(annotations: dict[str, Any]) -> Callable[..., Any]:
    def function(o: Any, page: int = 1) -> None: ...

    function.__annotations__ = annotations
    return function


def test_a_misspelt_argument_is_refused_with_the_nearest_name(app: Headgate) -> None:
    async def work(tenant_id: str, page: int = 1) -> None: ...

    with pytest.raises(
        DeclarationError, match=r"names 'tennant_id', which is not .*: tenant_id, page; write \{tenant_id\}"
    ):
        app.task(limits=[StrictRate("15/m", key="{tennant_id}")])(work)


def test_an_index_is_refused_with_the_dotted_path(app: Headgate) -> None:
    for path in ("o[tenant]", "o['tenant']"):
        with pytest.raises(DeclarationError, match=r"; write \{o\.tenant\}"):
            declare(app, DictOrder, StrictRate("15/m", key=f"{{{path}}}"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_argument_may_be_left_out_of_a_path(app: Headgate, kind: Any) -> None:
    async def work(order: Any) -> None: ...

    work.__annotations__ = {"order": kind}
    app.task(name="right", limits=[StrictRate("15/m", key="{tenant}"), Mutex("{owner.id}")])(work)
    with pytest.raises(
        DeclarationError, match=r"names 'tennant', .*: order, with the fields tenant, .*; write \{tenant\}"
    ):
        app.task(limits=[StrictRate("15/m", key="{tennant}")])(work)
    with pytest.raises(DeclarationError, match=r"Tenant has no field 'idd'; .*; write \{order.owner.id\}"):
        app.task(limits=[StrictRate("15/m", key="{owner.idd}")])(work)


# --------------------------------------------------------------------------------------------------------- constants


@pytest.mark.parametrize("constant", ["o", "page", "o.tenant", "o.owner.id"])
def test_a_constant_that_spells_an_argument_is_refused_with_the_braces(app: Headgate, constant: str) -> None:
    message = re.escape(f', which also names an argument or its field; write "{{{constant}}}"')
    for limit in (
        StrictRate("15/m", key=constant),
        Mutex(constant),
        Concurrency(3, owner=constant),
        StrictRate("15/m", cost=constant),
    ):
        with pytest.raises(DeclarationError, match=message):
            declare(app, StructOrder, limit)


def test_a_constant_that_spells_a_field_of_the_only_argument_is_refused_with_the_braces(app: Headgate) -> None:
    async def work(order: StructOrder) -> None: ...

    for constant in ("tenant", "owner.id"):
        with pytest.raises(DeclarationError, match=re.escape(f'write "{{{constant}}}"')):
            app.task(limits=[StrictRate("15/m", key=constant)])(work)
    app.task(limits=[StrictRate("15/m", key="tenants"), Mutex("nightly"), Mutex("order.nothing")])(work)


def test_a_cost_that_is_neither_a_number_nor_a_template_is_refused(app: Headgate) -> None:
    async def work(order: int) -> None: ...

    with pytest.raises(
        DeclarationError, match=r"cost='expensive' .* is not a number and names no argument; write cost=5"
    ):
        app.task(limits=[StrictRate("15/m", cost="expensive")])(work)
    app.task(limits=[StrictRate("15/m", cost="5")])(work)


# ------------------------------------------------------------------------------------------- wherever keys are declared


def test_the_payload_types_of_handlers_are_checked(app: Headgate) -> None:
    with pytest.raises(
        DeclarationError, match=r"names 'tennant', .*payload, with the fields tenant, number, owner; write"
    ):

        @app.handler(limits=[StrictRate("15/m", key="{tennant}")])
        class Misspelt(Handler[StructOrder]):
            async def run(self, payload: StructOrder) -> None: ...

    with pytest.raises(DeclarationError, match=re.escape('write "{tenant}"')):

        @app.handler(limits=[Mutex("tenant")])
        class Constant(Handler[StructOrder]):
            async def run(self, payload: StructOrder) -> None: ...


def test_named_limits_are_checked_against_each_task_that_uses_them(app: Headgate) -> None:
    app.limit("api", StrictRate("15/m", key="{o.tenant}"))
    declare(app, StructOrder, "api", name="right")
    with pytest.raises(DeclarationError, match="Tenant has no field 'tenant'; it has: id, region"):
        declare(app, Tenant, "api", name="wrong")


def test_limits_of_queues_are_checked_against_each_of_their_tasks(app: Headgate) -> None:
    async def work(o: StructOrder, page: int = 1) -> None: ...

    app.queue("mail", limits=[StrictRate("15/m", key="{o.tennant}")])
    with pytest.raises(DeclarationError, match=MISSPELT):
        app.task(queue="mail")(work)
    app.queue("mail", limits=[StrictRate("15/m", key="page")])
    with pytest.raises(DeclarationError, match=re.escape('write "{page}"')):
        app.task(queue="mail")(work)
    app.queue("mail")
    app.task(queue="mail")(work)
    with pytest.raises(DeclarationError, match=MISSPELT):
        app.queue("mail", limits=[StrictRate("15/m", key="{o.tennant}")])


async def test_limits_of_batches_are_checked_against_each_of_their_calls(app: Headgate) -> None:
    work = declare(app, StructOrder)
    call = work.call(StructOrder("acme"))
    async with app.open():
        with pytest.raises(DeclarationError, match=MISSPELT):
            await batch([call], limits=[Mutex("{o.tennant}")]).enqueue()
        with pytest.raises(DeclarationError, match=re.escape('write "{o}"')):
            await batch([call], limits=[Mutex("o")]).enqueue()
        await batch([call, call], limits=[Mutex("{o.tenant}")]).enqueue()


def test_limit_sets_of_other_queues_check_annotations_too() -> None:
    with pytest.raises(DeclarationError, match=MISSPELT):
        GatedTask("task", StrictRate("15/m", key="{o.tennant}"), _function({"o": StructOrder}))
    with pytest.raises(DeclarationError, match=re.escape('write "{page}"')):
        GatedTask("task", StrictRate("15/m", key="page"), _function({}))


def test_the_name_of_a_header_is_no_template() -> None:
    with pytest.raises(DeclarationError, match=re.escape('is not a template; write header("tenant")')):
        header("{tenant}")
    for name in ("", None, 5):
        with pytest.raises(DeclarationError, match="needs the name of a header"):
            header(name)  # type: ignore[arg-type]


def test_a_unique_key_is_no_template(app: Headgate) -> None:
    work = declare(app, StructOrder)
    for key in ("{o.tenant}", "order:{page}"):
        with pytest.raises(
            DeclarationError, match=r"is text, not a template, so all jobs would have this key; write the"
        ):
            work.using(unique_key=key)
    for key in ("page", "{other}", "{", '{"page": 1}'):
        assert work.using(unique_key=key).options["unique_key"] == key


async def test_no_job_of_a_checked_declaration_runs_without_its_limit(app: Headgate) -> None:
    skipped: list[LimitSkipped] = []
    app.subscribe(lambda event: skipped.append(event), LimitSkipped)
    work = declare(app, StructOrder, StrictRate("15/m", key="{o.tenant}"))
    async with app.open():
        await work.enqueue_many([(StructOrder("acme"),)] * 20)
        (bucket,) = {job.buckets for job in await store_of(app).jobs(_all())}
        assert [ref.key for ref in bucket] == ["acme"]
    assert skipped == []


def _all() -> Any:
    from headgate.jobs.query import JobFilter

    return JobFilter(count=100)
