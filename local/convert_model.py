"""Turns a GGUF file into a model folder that every engine reads. Run with the gpu environment's Python.

`python convert_model.py GGUF FOLDER` writes bf16 safetensors, and the tokenizer with its chat template.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def convert(gguf: Path, folder: Path) -> None:
    """Dequantises the weights on the way; without that, transformers can't save the model again."""
    torch: Any = import_module("torch")  # neither is in the environment that checks this file's types
    transformers: Any = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
