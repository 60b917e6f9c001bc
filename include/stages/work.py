"""What every stage is given: a shard, the ways to the outside, and the options of this run."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from include.core.connections import ConnectionLookup
from include.core.paths import Shard
from include.core.profile import TargetProfile, target_named
from include.core.spec import DatasetSpec
from include.tokens.target import Target, load_target

Report = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """One shard to work on. `limit` takes only the shard's first prompts; the shard then stays open.

    `regenerate` asks again for what the last audit found malformed.
    """

    shard: Shard
    connections: ConnectionLookup
    limit: int | None = None
    regenerate: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def spec(self) -> DatasetSpec:
        """The shard's dataset."""
        return self.shard.spec

    @cached_property
    def profile(self) -> TargetProfile:
        """The profile of the dataset's target."""
        return target_named(self.spec.target)

    @cached_property
    def target(self) -> Target:
        """The target's tokenizer and template, loaded once per process."""
        return load_target(self.profile, self.shard.settings.model_folder(self.profile))
