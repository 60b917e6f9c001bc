"""What people write in YAML: strict models, and every mistake of a file reported at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from include.core.errors import SpecError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Strict(BaseModel):
    """Unknown fields are mistakes; values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)


def existing(path: Path, kind: str) -> Path:
    """`path`, or a SpecError that lists what is there instead."""
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml"))) or "none"
        raise SpecError(
            f"There is no {kind} '{path.stem}'.", do=f"Known: {known}. Add {path} or fix the name."
        )
    return path


def load_yaml(path: Path, model: type[Model]) -> Model:
    """The file as `model`; SpecError lists every mistake by field."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} isn't valid YAML: {' '.join(str(error).split())}.") from None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors()]
        raise SpecError(f"{path} has {len(mistakes)} mistake(s): {'; '.join(mistakes)}.") from None
