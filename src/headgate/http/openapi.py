"""The description of the API, generated from the endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.http.endpoint import API, LONGEST_IDEMPOTENCY_KEY, Endpoint
from headgate.http.http_error import PROBLEM, Problem

REF = "#/components/schemas/{name}"

_STATUSES = {
    400: "The request is invalid: an unknown parameter, a value out of range, or no JSON.",
    401: "The credential is missing or wrong.",
    403: "This user may not do it; or the request came from another site, or without the token.",
    404: "It does not exist.",
    405: "The method is not allowed at this address.",
    408: "The body did not arrive in time.",
    409: "It cannot be done in the current state.",
    413: "The body is longer than 64 KB.",
    415: "The body is not JSON.",
    422: "The request is valid, but can never work.",
    503: "The store does not answer; try again later.",
}


def openapi(endpoints: Sequence[Endpoint]) -> bytes:
    """Return the description as JSON, OpenAPI 3.1."""
    types = _types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    known = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        described = _operation(endpoint, known, components)
        paths.setdefault(API + endpoint.path, {})[endpoint.method.lower()] = described
    paths[f"{API}/stream"] = {"get": _stream(known)}
    paths[f"{API}/openapi.json"] = {
        "get": {
            "operationId": "openapi",
            "summary": "This description",
            "tags": ["session"],
            "responses": {"200": _content("OpenAPI 3.1.", {"type": "object"})},
        }
    }
    # Parameters are described in place, so most of their types are not referred to.
    text = msgspec.json.encode([paths, components])
    components = {name: schema for name, schema in components.items() if f'"{REF.format(name=name)}"'.encode() in text}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Headgate",
                "version": "1",
                "description": "Read the state of your jobs, and change it. Instants are ISO 8601 in UTC, "
                "durations seconds. Lists come in pages: `next` is the cursor of the next page, null at the end.",
            },
            "servers": [{"url": "../..", "description": "where the dashboard is mounted"}],
            "security": [{"basic": []}, {"bearer": []}, {}],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "basic": {"type": "http", "scheme": "basic"},
                    "bearer": {"type": "http", "scheme": "bearer"},
                },
            },
        }
    )


def _types(endpoints: Sequence[Endpoint]) -> list[Any]:
    found: dict[str, Any] = {repr(Problem): Problem}
    for endpoint in endpoints:
        for kind in (endpoint.query, endpoint.body, endpoint.answer):
            if kind is not None:
                found.setdefault(repr(kind), kind)
    return list(found.values())


def _operation(endpoint: Endpoint, known: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in endpoint.path_names
    ]
    statuses = {400, 401, 403, 503, *endpoint.refuses}
    # A path parameter that cannot match, such as a name with a line break, is a 404 too.
    statuses |= {404} if endpoint.path_names else set()
    described: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.subject],
        "parameters": parameters + _parameters(endpoint, components),
    }
    description = " ".join(filter(None, (endpoint.description, f"Needs the role {endpoint.needs}.")))
    described["description"] = description
    text = {"type": "string"}
    if endpoint.changes:
        description = "The `token` of /api/v1/session; not needed with a bearer token."
        described["parameters"].append(_header("X-Headgate-Token", description, text))
    else:
        description = "The `ETag` of an answer that you have: if it has not changed, you get a 304."
        described["parameters"].append(_header("If-None-Match", description, text))
    if endpoint.takes_idempotency_key:
        described["parameters"].append(
            _header(
                "Idempotency-Key",
                "A text of your own for this request: another request with it and the same body gets the same job, one "
                "with another body a 422.",
                {**text, "minLength": 1, "maxLength": LONGEST_IDEMPOTENCY_KEY},
            )
        )
    if endpoint.body is not None:
        statuses |= {408, 413, 415}
        described["requestBody"] = {
            "required": not endpoint.is_body_optional,
            "content": _media(known[repr(endpoint.body)], example=endpoint.sends),
        }
    answer = _media(known[repr(endpoint.answer)], example=endpoint.answers)
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": answer}}
    if not endpoint.changes:
        responses["304"] = {"description": "The answer has not changed."}
    if endpoint.creates:
        responses["201"] = {"description": "The job is stored.", "content": answer}
    for status in sorted(statuses):
        responses[str(status)] = _content(_STATUSES[status], known[repr(Problem)], PROBLEM)
    described["responses"] = responses
    return described


def _parameters(endpoint: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters of its query, from the type that parses them."""
    if endpoint.query is None:
        return []
    schema = components[endpoint.query.__name__]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, **_documented(each)}
        for name, each in schema["properties"].items()
    ]


def _documented(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema and description. A parameter that may be null is left out of a URL."""
    choices = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    schema = {name: value for name, value in schema.items() if name != "anyOf" and value is not None}
    if len(choices) == 1:
        schema.update(choices[0])
    elif choices:
        schema["anyOf"] = choices
    # An enum may contain null beside its values.
    if "enum" in schema:
        schema["enum"] = [word for word in schema["enum"] if word is not None]
    description = schema.pop("description", None)
    return {"schema": schema} if description is None else {"description": description, "schema": schema}


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _content(description: str, schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": _media(schema, kind)}


def _media(schema: dict[str, Any], kind: str = "application/json", *, example: Any = None) -> dict[str, Any]:
    return {kind: {"schema": schema} if example is None else {"schema": schema, "example": example}}


def _stream(known: dict[str, Any]) -> dict[str, Any]:
    refusals = {str(status): _content(_STATUSES[status], known[repr(Problem)], PROBLEM) for status in (401, 403, 503)}
    return {
        "operationId": "stream",
        "summary": "The overview as server-sent events, whenever it has changed, at most once a second",
        "description": "`event: overview` has the JSON of /api/v1/overview; `event: resync` says that events were "
        "skipped for a client that was too slow; `event: lost` that the store does not answer. A comment is sent after "
        "15 s of silence. A stream ends after half a minute, and an EventSource opens the next one by itself.",
        "tags": ["overview"],
        "responses": {
            "200": {"description": "The stream.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **refusals,
        },
    }
