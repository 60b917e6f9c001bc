"""Turns a GGUF file into a model folder that every engine reads. Run with the gpu environment's Python.

`python convert_model.py GGUF FOLDER` writes bf16 safetensors, and the tokenizer with its chat template. GGUF names its
rules for splitting text ("smollm": digits one by one, then GPT-2's), and transformers doesn't read that name: without
it `:\n\n1` is another four tokens than the model writes. So they are set here.
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
    pre_tokenizers: Any = import_module("tokenizers.pre_tokenizers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
