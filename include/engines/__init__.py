"""The engines by the name that a dataset's YAML gives them."""

from include.engines.base import Engine
from include.engines.sglang import Sglang
from include.engines.vllm import Vllm

ENGINES: dict[str, Engine] = {"vllm": Vllm(), "sglang": Sglang()}
