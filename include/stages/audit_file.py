"""The audit of one Parquet file by itself, without its shard's prompts and ledger: the command `audit FILE`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from include.core.errors import StorageError
from include.core.parquet import read_metadata
from include.core.paths import Settings
from include.core.profile import target_named
from include.stages.audit import compare_metadata, watched, whole_file
from include.tokens.audit import Audit
from include.tokens.case import Facts
from include.tokens.target import load_target

Value = TypeVar("Value")


def audit_file(path: Path, settings: Settings, tokenizer: Path | None, target: str | None) -> Audit:
    """Every rule that the file alone can be held against; what it says of itself names the target.

    `tokenizer` is the model's folder, by default the target's below EAGLE3_MODELS_DIR.
    """
    metadata = read_metadata(path)
    name = target or metadata.get("target")
    if not name:
        raise StorageError(f"{path} doesn't say what its target is.", do="Name it with --target.")
    profile = target_named(name)
    loaded = load_target(profile, tokenizer or settings.model_folder(profile))
    facts = Facts(
        loaded,
        _said(path, metadata, "max_seq_len", 1 << 31),
        _said(path, metadata, "tools", False),
        _said(path, metadata, "max_count_delta", 0),
    )
    _said(path, metadata, "special_tokens", {})
    audit = Audit(facts)
    for _ in watched(audit, path):
        pass
    compare_metadata(audit, metadata, {})
    whole_file(audit)
    return audit


def _said(path: Path, metadata: Mapping[str, str], key: str, default: Value) -> Value:
    """A JSON value of the metadata, of the default's type."""
    try:
        value = json.loads(metadata[key]) if key in metadata else default
    except ValueError:
        value = None
    if not isinstance(value, type(default)):
        raise StorageError(f"{path} says {key} {metadata[key][:40]!r}: that can't be.")
    return value
