"""Where the engine and the GPU host are, in Airflow's own words.

Inside Airflow a connection comes from Airflow (UI, secrets backend, environment); outside, the CLI reads the same
`AIRFLOW_CONN_<ID>` variables, as a URI or as JSON. So there is one place to configure, not two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from include.core.errors import SpecError


@dataclass(frozen=True)
class Connection:
    """One connection; `extra` is what Airflow calls Extra (a JSON object). The password never shows in a repr."""

    conn_id: str
    conn_type: str = ""
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


ConnectionLookup = Callable[[str], Connection]


def from_environment(environ: Mapping[str, str]) -> ConnectionLookup:
    """A lookup over `AIRFLOW_CONN_<ID>`; raises SpecError where the variable is missing or unreadable."""

    def lookup(conn_id: str) -> Connection:
        name = f"AIRFLOW_CONN_{conn_id.upper()}"
        text = environ.get(name, "").strip()
        if not text:
            raise SpecError(
                f"There is no connection '{conn_id}'.",
                do=f"Set {name} (a URI or JSON, as Airflow reads it), or add the connection in Airflow's UI.",
            )
        try:
            return _from_json(conn_id, text) if text.startswith("{") else _from_uri(conn_id, text)
        except (ValueError, TypeError, AttributeError) as error:
            raise SpecError(
                f"{name} can't be read as a connection: {error}.", do="Write it as a URI or JSON."
            ) from None

    return lookup


def _from_json(conn_id: str, text: str) -> Connection:
    fields = json.loads(text)
    extra = fields.get("extra") or {}
    port = fields.get("port")
    return Connection(
        conn_id=conn_id,
        conn_type=fields.get("conn_type") or "",
        host=fields.get("host") or "",
        port=int(port) if port else None,
        login=fields.get("login") or "",
        password=fields.get("password") or "",
        schema=fields.get("schema") or "",
        extra=json.loads(extra) if isinstance(extra, str) else dict(extra),
    )


def _from_uri(conn_id: str, text: str) -> Connection:
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    return Connection(
        conn_id=conn_id,
        conn_type=parts.scheme,
        host=unquote(parts.hostname or ""),
        port=parts.port,
        login=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        schema=unquote(parts.path.lstrip("/")),
        extra=extra,
    )
