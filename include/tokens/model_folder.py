"""What a model's folder says in its JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from include.core.errors import TargetError
from include.core.files import storage_errors


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; {} where there is none."""
    return _json(folder / "tokenizer_config.json")


def end_ids(folder: Path) -> list[int]:
    """With which ids generation_config.json ends an answer; [] where it doesn't say."""
    said = _json(folder / "generation_config.json").get("eos_token_id")
    return [] if said is None else [int(id_) for id_ in (said if isinstance(said, list) else [said])]


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with storage_errors(path):
        text = path.read_text(encoding="utf-8")
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise TargetError(
            f"{path} isn't valid JSON ({error}).", do="Compare the folder with the model's own."
        ) from None
