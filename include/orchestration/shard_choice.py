"""Which shard a run works on: its partition key, or the lowest one that isn't done and that no other run has."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from include.core.files import read_json, require_writable, write_json
from include.core.paths import Settings, Shard, shard_index
from include.core.spec import DatasetSpec
from include.stages.shards import is_done, next_shard, shard_count


def shard_of_key(spec: DatasetSpec, settings: Settings, key: str) -> Shard:
    """The shard that a partition key names."""
    return Shard(spec, shard_index(key), settings)


def claim_open_shard(
    spec: DatasetSpec, settings: Settings, run_id: str, is_active: Callable[[str], bool]
) -> Shard:
    """The lowest shard that is neither done nor claimed by another run that is still active."""
    require_writable(settings.data_dir)
    for index in range(shard_count(spec)):
        shard = Shard(spec, index, settings)
        if is_done(shard):
            continue
        owner = _claim(shard, run_id)
        if owner != run_id and is_active(owner):
            continue
        if owner != run_id:
            write_json(shard.folder / "claim.json", {"run_id": run_id})
        return shard
    return next_shard(spec, settings)


def _claim(shard: Shard, run_id: str) -> str:
    """The run that has the shard: this one, if nobody had it. Two at once can't both get it."""
    path = shard.folder / "claim.json"
    mine = path.with_name(f".claim-{secrets.token_hex(4)}.json")
    write_json(mine, {"run_id": run_id})
    try:
        path.hardlink_to(mine)
    except FileExistsError:
        return str(read_json(path).get("run_id", ""))
    finally:
        mine.unlink()
    return run_id
