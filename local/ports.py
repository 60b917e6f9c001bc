"""The services' ports: chosen once per state folder and kept, so that a printed environment stays true."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

HOST = "127.0.0.1"


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Any port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def settle(file: Path, wanted: Mapping[str, int], *, in_use: Collection[str] = ()) -> dict[str, int]:
    """The port of each service: the one kept in `file`, else the wanted one (0: any), else a free one.

    A port that someone else has taken meanwhile is given up; that of a service in `in_use` is ours.
    """
    try:
        kept = {str(name): int(port) for name, port in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        kept = {}
    chosen: dict[str, int] = {}
    for name, port in wanted.items():
        candidates = [p for p in (kept.get(name, 0), port) if p and p not in chosen.values()]
        usable = [p for p in candidates if (name in in_use and p == kept.get(name)) or is_free(p)]
        chosen[name] = usable[0] if usable else free_port()
    if chosen != kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(chosen))
    return chosen
