"""export_parquet: audited samples → the public Parquet shard with its manifest."""

from __future__ import annotations

from include.core.errors import StorageError
from include.core.files import file_digest, write_json
from include.core.parquet import count_rows, parquet_writer, read_metadata, read_rows
from include.core.schema import SAMPLES, SCHEMA_VERSION
from include.core.version import VERSION
from include.stages import audit
from include.stages.report import section
from include.stages.work import Report, Work


def run(work: Work) -> Report:
    """Writes <shard>.parquet and then <shard>.json; refuses what hasn't passed its audit as it is now."""
    shard = work.shard
    verdict, audit_digest = audit.passed(shard)
    if not verdict:
        raise StorageError(
            f"{shard.tokens} hasn't passed its audit.",
            do="Run `audit` again; only audited samples are exported.",
        )
    metadata = read_metadata(shard.tokens) | {
        "audit_verdict": "pass",
        "audit_digest": audit_digest,
        "code_version": VERSION,
    }
    tokens = supervised = 0
    with parquet_writer(shard.exported, SAMPLES, metadata) as file:
        for row in read_rows(shard.tokens, SAMPLES):
            file.write(row)
            tokens += row["seq_len"]
            supervised += int(row["loss_mask"].sum())
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "dataset": work.spec.name,
        "version": work.spec.version,
        "shard": shard.key,
        "file": shard.exported.name,
        "sha256": file_digest(shard.exported),
        "bytes": shard.exported.stat().st_size,
        "samples": count_rows(shard.exported),
        "tokens": tokens,
        "supervised_tokens": supervised,
        "limit": (section(shard, "render_prompts") or {}).get("limit"),
        "target": metadata["target"],
    }
    write_json(shard.manifest, manifest)
    return manifest | {"file": str(shard.exported)}
