"""Which shards a dataset has, and which of them are still open."""

from __future__ import annotations

from include.core.files import read_json
from include.core.paths import Settings, Shard
from include.core.spec import DatasetSpec
from include.sources.jsonl import count_rows


def shard_count(spec: DatasetSpec) -> int:
    """How many shards the source has today."""
    return -(-count_rows(spec.source_path) // spec.shard_size)


def is_done(shard: Shard) -> bool:
    """Exported whole: by this version of the spec, and not with a `limit`."""
    return shard.manifest.exists() and read_json(shard.manifest).get("limit") is None


def next_shard(spec: DatasetSpec, settings: Settings) -> Shard:
    """The lowest shard that isn't done; where all are, the last one, which then has nothing new to do."""
    count = max(shard_count(spec), 1)
    shards = (Shard(spec, index, settings) for index in range(count))
    return next((shard for shard in shards if not is_done(shard)), Shard(spec, count - 1, settings))
