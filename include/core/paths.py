"""Where a shard's files are. One folder a shard; nothing else writes there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from include.core.errors import SpecError
from include.core.profile import TargetProfile
from include.core.spec import DatasetSpec

_SHARD = re.compile(r"^shard-(\d{5,})$")


def shard_key(index: int) -> str:
    """7 → 'shard-00007', which is also the partition key of the Dag run."""
    return f"shard-{index:05d}"


def shard_index(key: str) -> int:
    """'shard-00007' → 7; SpecError for anything else."""
    match = _SHARD.match(key)
    if not match or shard_key(int(match.group(1))) != key:
        raise SpecError(f"'{key}' is no shard.", do="A shard is written shard-00007.")
    return int(match.group(1))


@dataclass(frozen=True)
class Settings:
    """The two folders that the data side needs, from the environment."""

    data_dir: Path
    models_dir: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Reads EAGLE3_DATA_DIR and EAGLE3_MODELS_DIR; by default data/ and models/ in the current folder."""
        return cls(
            data_dir=Path(environ.get("EAGLE3_DATA_DIR") or "data").absolute(),
            models_dir=Path(environ.get("EAGLE3_MODELS_DIR") or "models").absolute(),
        )

    def model_folder(self, target: TargetProfile) -> Path:
        """The folder that holds the target's tokenizer and template."""
        return self.models_dir / target.folder_name


@dataclass(frozen=True)
class Shard:
    """One shard of one version of one dataset, and the paths of its files."""

    spec: DatasetSpec
    index: int
    settings: Settings

    @property
    def key(self) -> str:
        """The shard's name and the run's partition key."""
        return shard_key(self.index)

    @property
    def label(self) -> str:
        """How messages name it: 'demo/shard-00000'."""
        return f"{self.spec.name}/{self.key}"

    @property
    def folder(self) -> Path:
        """<data>/shards/<dataset>/<version>/<shard>."""
        return self.settings.data_dir / "shards" / self.spec.name / self.spec.version / self.key

    @property
    def export_folder(self) -> Path:
        """<data>/exported/<dataset>/<version>: Parquet shards and their manifests, side by side."""
        return self.settings.data_dir / "exported" / self.spec.name / self.spec.version

    @property
    def prompts(self) -> Path:
        """The rendered prompts."""
        return self.folder / "prompts.parquet"

    @property
    def ledger(self) -> Path:
        """Every finished request, append-only."""
        return self.folder / "ledger.jsonl"

    @property
    def tokens(self) -> Path:
        """The reconstructed samples, before the audit."""
        return self.folder / "tokens.parquet"

    @property
    def exported(self) -> Path:
        """The audited Parquet shard: the public contract."""
        return self.export_folder / f"{self.key}.parquet"

    @property
    def manifest(self) -> Path:
        """Written last: the shard is exported when this is there."""
        return self.export_folder / f"{self.key}.json"

    @property
    def audit(self) -> Path:
        """The audit's verdict, rule by rule."""
        return self.folder / "audit.json"

    @property
    def audit_page(self) -> Path:
        """The same for people."""
        return self.folder / "audit.html"

    @property
    def summary(self) -> Path:
        """The shard's numbers in one place, for people and pages."""
        return self.folder / "report.json"
