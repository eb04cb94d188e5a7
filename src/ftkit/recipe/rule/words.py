"""Names in recipes taken apart."""

from __future__ import annotations

import re

AUTO = re.compile(r"Auto(Model|Tokenizer|Processor)\w*")
TASK = re.compile(r"(For[A-Z]\w*|LMHeadModel|Model)$")


def pascal_prefix(model_type: str) -> str:
    """The family in a class of transformers: `LlamaForCausalLM` -> `Llama`; empty for `AutoModelForCausalLM`."""
    if AUTO.fullmatch(model_type) or not TASK.search(model_type):
        return ""
    return TASK.sub("", model_type)
