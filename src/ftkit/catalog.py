"""Every name a recipe may use for a part, and where that part lives.

A value is `module:attribute`, imported only when a recipe asks for it, so that this table can be read without torch.
Adding a part is one file and one line here; the contract tests run over these tables.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

FORMATS: Mapping[str, str] = {
    "sharegpt": "ftkit.data.formats.sharegpt:build",
    "chat_template": "ftkit.data.formats.messages:build",
    "chat_template.default": "ftkit.data.formats.messages:build",
    "alpaca": "ftkit.data.formats.alpaca:build",
    "alpaca:chat": "ftkit.data.formats.alpaca:build_chat",
    "alpaca_chat": "ftkit.data.formats.alpaca:build_chat",
    "alpaca_chat.load_qa": "ftkit.data.formats.alpaca:build_question_answer",
    "alpaca_w_system.load_open_orca": "ftkit.data.formats.alpaca:build_open_orca",
    "alpaca:chatml": "ftkit.data.formats.alpaca:build_chatml",
    "alpaca:phi": "ftkit.data.formats.alpaca:build_phi",
    "context_qa": "ftkit.data.formats.alpaca:build_context",
    "custom": "ftkit.data.formats.custom:build",
    "oasst": "ftkit.data.formats.oasst:build",
    "query_response": "ftkit.data.formats.history:build",
    "pretokenized": "ftkit.data.formats.pretokenized:build",
    "gpteacher": "ftkit.data.formats.alpaca:build_gpteacher",
    "reflection": "ftkit.data.formats.reflection:build",
    "completion": "ftkit.data.formats.completion:build",
    "pretrain": "ftkit.data.formats.completion:build",
    "input_output": "ftkit.data.formats.input_output:build",
}
TEMPLATES: Mapping[str, str] = {
    "chatml": "ftkit.data.templates.chatml:TEMPLATE",
    "llama2": "ftkit.data.templates.llama2:TEMPLATE",
    "llama-2": "ftkit.data.templates.llama2:TEMPLATE",
    "llama3": "ftkit.data.templates.llama3:TEMPLATE",
    "llama-3": "ftkit.data.templates.llama3:TEMPLATE",
    "llama4": "ftkit.data.templates.llama4:TEMPLATE",
    "mistral": "ftkit.data.templates.mistral:TEMPLATE",
    "mistral_v1": "ftkit.data.templates.mistral:TEMPLATE",
    "gemma": "ftkit.data.templates.gemma:TEMPLATE",
    "gemma3": "ftkit.data.templates.gemma:TEMPLATE",
    "gemma3n": "ftkit.data.templates.gemma:TEMPLATE",
    "cohere": "ftkit.data.templates.cohere:TEMPLATE",
    "falcon_h1": "ftkit.data.templates.falcon_h1:TEMPLATE",
    "phi_3": "ftkit.data.templates.phi3:TEMPLATE",
    "phi_35": "ftkit.data.templates.phi3:TEMPLATE",
    "phi_4": "ftkit.data.templates.phi4:TEMPLATE",
    "qwen": "ftkit.data.templates.qwen:TEMPLATE",
    "qwen_25": "ftkit.data.templates.qwen:TEMPLATE",
    "qwen3": "ftkit.data.templates.qwen3:TEMPLATE",
    "deepseek": "ftkit.data.templates.deepseek:TEMPLATE",
    "deepseek_v2": "ftkit.data.templates.deepseek:TEMPLATE",
    "deepseek_v3": "ftkit.data.templates.deepseek_v3:TEMPLATE",
    "vicuna": "ftkit.data.templates.vicuna:TEMPLATE",
    "vicuna_v1.1": "ftkit.data.templates.vicuna:TEMPLATE",
    "zephyr": "ftkit.data.templates.zephyr:TEMPLATE",
    "alpaca": "ftkit.data.templates.alpaca:TEMPLATE",
}
QUANTIZERS: Mapping[str, str] = {
    "nf4": "ftkit.model.nf4:NF4Linear",
    "fp4": "ftkit.model.nf4:FP4Linear",
    "int8": "ftkit.model.int8:Int8Linear",
    "hqq": "ftkit.model.hqq:HqqLinear",
}
OPTIMIZERS: Mapping[str, str] = {
    "adamw_torch": "ftkit.optim.of_torch:adamw",
    "adamw_hf": "ftkit.optim.of_torch:adamw",
    "adamw_torch_fused": "ftkit.optim.of_torch:adamw_fused",
    "adamw_bnb_8bit": "ftkit.optim.of_bitsandbytes:adamw_8bit",
    "adamw_8bit": "ftkit.optim.of_bitsandbytes:adamw_8bit",
    "paged_adamw_8bit": "ftkit.optim.of_bitsandbytes:paged_adamw_8bit",
    "paged_adamw_32bit": "ftkit.optim.of_bitsandbytes:paged_adamw_32bit",
    "lion_pytorch": "ftkit.optim.of_bitsandbytes:lion_32bit",
    "lion_8bit": "ftkit.optim.of_bitsandbytes:lion_8bit",
    "lion_32bit": "ftkit.optim.of_bitsandbytes:lion_32bit",
    "paged_lion_8bit": "ftkit.optim.of_bitsandbytes:paged_lion_8bit",
    "paged_lion_32bit": "ftkit.optim.of_bitsandbytes:paged_lion_32bit",
    "ademamix": "ftkit.optim.of_bitsandbytes:ademamix_32bit",
    "ademamix_8bit": "ftkit.optim.of_bitsandbytes:ademamix_8bit",
    "paged_ademamix_32bit": "ftkit.optim.of_bitsandbytes:paged_ademamix_32bit",
    "paged_ademamix_8bit": "ftkit.optim.of_bitsandbytes:paged_ademamix_8bit",
    "adafactor": "ftkit.optim.of_torch:adafactor",
    "sgd": "ftkit.optim.of_torch:sgd",
    "adagrad": "ftkit.optim.of_torch:adagrad",
    "rmsprop": "ftkit.optim.of_torch:rmsprop",
    "rmsprop_bnb": "ftkit.optim.of_bitsandbytes:rmsprop_32bit",
    "rmsprop_bnb_8bit": "ftkit.optim.of_bitsandbytes:rmsprop_8bit",
    "rmsprop_bnb_32bit": "ftkit.optim.of_bitsandbytes:rmsprop_32bit",
    "muon": "ftkit.optim.muon:muon",
}
SCHEDULES: Mapping[str, str] = {
    "cosine": "ftkit.optim.shapes:cosine",
    "cosine_with_min_lr": "ftkit.optim.shapes:cosine_with_min_lr",
    "cosine_with_restarts": "ftkit.optim.shapes:cosine_with_restarts",
    "linear": "ftkit.optim.shapes:linear",
    "constant": "ftkit.optim.shapes:constant",
    "constant_with_warmup": "ftkit.optim.shapes:constant_with_warmup",
    "polynomial": "ftkit.optim.shapes:polynomial",
    "inverse_sqrt": "ftkit.optim.shapes:inverse_sqrt",
    "one_cycle": "ftkit.optim.shapes:one_cycle",
    "rex": "ftkit.optim.shapes:rex",
    "wsd": "ftkit.optim.shapes:wsd",
    "warmup_stable_decay": "ftkit.optim.shapes:wsd",
}
BACKENDS: Mapping[str, str] = {
    "single": "ftkit.parallel.single:build",
    "ddp": "ftkit.parallel.ddp:build",
    "fsdp": "ftkit.parallel.fsdp:build",
    "zero": "ftkit.parallel.zero:build",
}
TRACKERS: Mapping[str, str] = {}  # section TrackingSection -> a Listener, see train/events.py; filled with the trackers


def load(target: str) -> Any:
    """Import the part behind one of the `module:attribute` values above."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
