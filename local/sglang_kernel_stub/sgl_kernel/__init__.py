"""Stands in for SGLang's kernel package, which has no CPU build on the package index: it imports, and computes nothing.

SGLang imports its kernels by name at start; a Llama on the CPU calls none of them and runs on plain torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("_"):  # what Python itself looks for, such as __path__
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} was called, and this is only its stand-in")

    return missing
