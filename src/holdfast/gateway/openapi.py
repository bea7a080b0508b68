"""The OpenAPI 3.1 document, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import holdfast
from holdfast import api
from holdfast.core.people import ACTOR
from holdfast.gateway.actors import VIA
from holdfast.gateway.calls import Route
from holdfast.gateway.keys import Keys
from holdfast.gateway.limits import KEY, TENANT

HEADERS: dict[str, dict[str, Any]] = {
    "Holdfast-Actor": {"type": "string", "pattern": ACTOR, "description": "Who asks, by the name the caller gives."},
    "Holdfast-Via": {
        "type": "string",
        "pattern": VIA,
        "description": "By which face the caller speaks, in its own word; `http` if absent.",
    },
    "Idempotency-Key": {"type": "string", "pattern": KEY},
    "If-Match": {"type": "string", "pattern": '^("[0-9]{1,18}"|\\*)$'},
    "If-None-Match": {"type": "string", "pattern": '^("[0-9]{1,18}"|\\*)$'},
    "Last-Event-ID": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    "traceparent": {"type": "string", "description": "W3C trace context; ignored where it is none."},
}
TENANT_HEADER = {
    "name": "Holdfast-Tenant",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": TENANT, "default": "default"},
}
_PARAMETER = re.compile(r"\{(\w+)\}")

Uses = Mapping[Any, dict[str, Any]]
"""By type of a request or a reply: the schema that stands for it, a reference or several."""


def document(routes: Sequence[Route], *, keys: Keys) -> dict[str, Any]:
    types: dict[Any, None] = {api.Problem: None}
    for route in routes:
        types |= dict.fromkeys(kind for kind in (route.request, route.reply, route.query) if kind is not None)
    used, named = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas = dict(sorted(named.items()))
    uses = dict(zip(types, used, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, uses, keys)
    queries = {route.query.__name__ for route in routes if route.query is not None}
    components: dict[str, Any] = {"schemas": {name: s for name, s in schemas.items() if name not in queries}}
    if keys.required:
        components["securitySchemes"] = {"apiKey": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": holdfast.__version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": components,
    }


def _operation(route: Route, schemas: dict[str, Any], uses: Uses, keys: Keys) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.run.__name__,
        "summary": route.summary,
        "tags": list(route.tags),
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas), *_header_parameters(route, keys)],
        "responses": _responses(route, uses),
    }
    if route.request is not None:
        content = {"application/json": {"schema": uses[route.request]}}
        operation["requestBody"] = {"required": not route.optional, "content": content}
    if keys.required and not route.open:
        operation["security"] = [{"apiKey": []}]
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameters(route: Route, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    properties: dict[str, Any] = schemas[route.query.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, "schema": _absent_not_null(schema)}
        for name, schema in properties.items()
    ]


def _absent_not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query field is there or not; there is no null in a query string."""
    options = [option for option in schema.get("anyOf", []) if option != {"type": "null"}]
    return options[0] if len(options) == 1 else schema


def _header_parameters(route: Route, keys: Keys) -> list[dict[str, Any]]:
    needed = () if keys.tell_who else route.needs
    own = [
        {"name": name, "in": "header", "required": name in needed, "schema": HEADERS[name]} for name in route.headers
    ]
    return own if route.open else [*own, TENANT_HEADER]


def _responses(route: Route, uses: Uses) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    schema = {"type": "string"} if route.reply is None else uses[route.reply]
    for status in route.statuses:
        responses[str(status)] = {"description": _STATUSES[status]}
        if status != 304:
            responses[str(status)]["content"] = {route.media: {"schema": schema}}
    responses["default"] = {
        "description": "A problem; its `code` is stable.",
        "content": {"application/problem+json": {"schema": uses[api.Problem]}},
    }
    return responses


_STATUSES = {200: "Done", 202: "Accepted, and durable", 304: "Not changed"}
