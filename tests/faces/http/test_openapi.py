"""The description of the API is true: what it says is answered, and nothing that fits it breaks anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from headgate.http import dashboard
from headgate.http.endpoint import parse_body
from headgate.http.openapi import openapi
from headgate.http.routes import ENDPOINTS
from headgate.http.static_files import LISTS
from tests.faces.http.stage import EVERYBODY, Seeds, client, make_app, seed

DESCRIPTION: dict[str, Any] = json.loads(openapi(ENDPOINTS))
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
FOUND: list[Any] = [each.ok() for each in SCHEMA.get_all_operations()]  # type: ignore[union-attr]  # all are right
OPERATIONS = [each for each in FOUND if each.path != "/api/v1/stream"]


def test_the_description_is_valid_openapi() -> None:
    SCHEMA.validate()


def described_by(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the component that a schema refers to."""
    found: dict[str, Any] = DESCRIPTION["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


@pytest.mark.parametrize("name", LISTS)
def test_an_answer_has_each_column_that_the_dashboard_shows(name: str) -> None:
    answer = DESCRIPTION["paths"][f"/api/v1/{name}"]["get"]["responses"]["200"]["content"]["application/json"]
    record = described_by(described_by(answer["schema"])["properties"]["items"]["items"])
    shown = {column.name for column in LISTS[name] if column.only != "cli"}
    assert len(shown) > 3
    assert shown <= record["properties"].keys()


def test_every_endpoint_is_described_with_each_status_that_it_can_have() -> None:
    for endpoint in ENDPOINTS:
        described = DESCRIPTION["paths"][f"/api/v1{endpoint.path}"][endpoint.method.lower()]
        assert described["summary"]
        assert described["operationId"] == endpoint.name
        wanted = {200, 400, 401, 403, 503, *endpoint.refuses} | ({408, 413, 415} if endpoint.body else set())
        wanted |= {404} if endpoint.path_names else set()
        wanted |= {201} if endpoint.creates else set()
        wanted |= set() if endpoint.changes else {304}
        assert {int(status) for status in described["responses"]} == wanted
    names = [each.name for each in ENDPOINTS]
    assert len(set(names)) == len(names)


def test_each_body_has_an_example_that_its_endpoint_accepts() -> None:
    for endpoint in ENDPOINTS:
        described = DESCRIPTION["paths"][f"/api/v1{endpoint.path}"][endpoint.method.lower()]
        if endpoint.body is not None:
            (media,) = described["requestBody"]["content"].values()
            assert parse_body(json.dumps(media["example"]).encode(), endpoint.body)
        if endpoint.answers is not None:
            assert type(endpoint.answers) is endpoint.answer
            (media,) = described["responses"]["200"]["content"].values()
            assert msgspec.convert(media["example"], endpoint.answer) == endpoint.answers


def test_parameters_are_described_by_what_parses_them() -> None:
    parameters = {each["name"]: each for each in DESCRIPTION["paths"]["/api/v1/jobs"]["get"]["parameters"]}
    assert parameters["count"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}
    assert parameters["text"]["schema"] == {"type": "string", "minLength": 1, "maxLength": 200}
    assert not any(each["required"] for each in parameters.values())
    assert "JobsQuery" not in DESCRIPTION["components"]["schemas"]


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[asyncio.Runner, Any, Seeds]]:
    """A site with a bit of everything in its store, and the loop that it lives on."""
    app = make_app()
    site = dashboard(app, auth=EVERYBODY)

    async def open() -> Seeds:
        opened = app.open()
        await opened.__aenter__()
        kept.append(opened)
        return await seed(app)

    kept: list[Any] = []
    with asyncio.Runner() as runner:
        seeds = runner.run(open())
        yield runner, site, seeds
        runner.run(site.close())


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.label)
def test_every_valid_request_gets_a_described_response(
    stage: tuple[asyncio.Runner, Any, Seeds], operation: Any
) -> None:
    """No answer is a 5xx, each status and each body is one that is described, and no page is longer than it may be."""
    runner, site, seeds = stage
    known = [seeds.failed, seeds.batch, "bucket", "hourly", "default", "permits"]

    @settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(), number=...)
    def attack(case: Any, number: int) -> None:
        # Half of them are about something that is there.
        if number % 2:
            case.path_parameters = {name: known[number % len(known)] for name in case.path_parameters or {}}
        runner.run(answered(case))

    async def answered(case: Any) -> None:
        async with client(site) as caller:
            token = (await caller.get("/api/v1/session")).json()["token"]
            case.headers = {**(case.headers or {}), "X-Headgate-Token": token}
            request = case.as_transport_kwargs(base_url="http://localhost:8000")
            answer = await caller.request(
                request["method"],
                request["url"],
                params=request.get("params"),
                json=request.get("json"),
                content=request.get("data"),
                headers={name: value for name, value in case.headers.items() if name == "X-Headgate-Token"},
            )
        assert answer.status_code < 500, (str(answer.request.url), answer.text)
        described = operation.definition.raw["responses"]
        assert str(answer.status_code) in described, (answer.status_code, str(answer.request.url), answer.text)
        operation.validate_response(answer)
        if answer.status_code == 200 and case.method == "GET":
            assert len(answer.json().get("items", ())) <= 500

    attack()
