"""Whoever has transformers and PEFT can load what a run leaves, and gets the logits that ftkit's own net gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from ftkit.assemble import Loaded
from ftkit.model.plan import plan_model
from ftkit.model.quantized import QuantizedLinear
from ftkit.recipe import load_recipe
from ftkit.run import run
from ftkit.summary import loading
from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets: [{{path: {folder}/rows.jsonl, type: sharegpt}}]
output_dir: {folder}/out
learning_rate: 1e-2
lora_r: 4
lora_alpha: 8
lora_target_linear: true
max_steps: 3
{more}
"""


@torch.no_grad()
def logits_of(net: nn.Module) -> torch.Tensor:
    """Logits of forty arbitrary tokens."""
    logits: torch.Tensor = net(input_ids=torch.arange(5, 45)[None]).logits
    return logits


def trained(folder: Path, more: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, nn.Module]:
    """Run a recipe; return its output folder and the net as it stood at the end."""
    tiny_model(folder / "model")
    sharegpt_rows(folder / "rows.jsonl")
    (folder / "recipe.yml").write_text(RECIPE.format(folder=folder, more=more), encoding="utf8")
    nets: list[nn.Module] = []

    def keep(*args: Any, **kwargs: Any) -> Loaded:
        loaded = original(*args, **kwargs)
        nets.append(loaded.net)
        return loaded

    import ftkit.run as module

    original = module.load_model
    monkeypatch.setattr(module, "load_model", keep)
    output = run(load_recipe(folder / "recipe.yml")).output_dir
    return output, nets[0].eval()


def test_peft_loads_a_lora_adapter_with_equal_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, net = trained(tmp_path, "adapter: lora", monkeypatch)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, output).eval()
    torch.testing.assert_close(logits_of(net), logits_of(theirs), rtol=1e-5, atol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert not torch.allclose(logits_of(plain), logits_of(theirs), atol=1e-3)


def test_peft_loads_a_qlora_adapter_with_equal_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, net = trained(tmp_path, "adapter: qlora\nload_in_4bit: true", monkeypatch)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    ours = logits_of(net)
    unquantized = PeftModel.from_pretrained(base, output).eval()
    rounding = (logits_of(unquantized) - ours).norm() / ours.norm()
    assert 0 < rounding < 0.2, "the difference is the quantization's"
    for name, module in net.named_modules():  # give the plain model the very weights that ftkit's net multiplies with
        if isinstance(module, QuantizedLinear):
            plain = unquantized.get_submodule(f"base_model.model.{name}")
            plain.weight.data = module.weight_in(torch.float32)
    torch.testing.assert_close(logits_of(unquantized), ours, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("more", ["", "load_in_4bit: true\n"])
def test_the_code_that_a_loftq_run_names_loads_its_adapter_with_equal_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    keys = "adapter: lora\npeft: {loftq_config: {loftq_bits: 4}}\n" + more
    output, net = trained(tmp_path, keys, monkeypatch)
    recipe = load_recipe(tmp_path / "recipe.yml")
    code = loading(plan_model(recipe.model, recipe.quantization, recipe.adapter))
    wide = SimpleNamespace(from_pretrained=partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32))
    base = eval(code, {"AutoModelForCausalLM": wide, "BitsAndBytesConfig": BitsAndBytesConfig})
    base = base.dequantize()  # to the same values; on a CPU bitsandbytes multiplies 4-bit weights in bfloat16
    theirs = PeftModel.from_pretrained(base, output).eval()
    torch.testing.assert_close(logits_of(theirs), logits_of(net), rtol=1e-4, atol=1e-4)
    unquantized = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    other = PeftModel.from_pretrained(unquantized, output).eval()
    assert (logits_of(other) - logits_of(net)).norm() > 0.01 * logits_of(net).norm()


def test_transformers_loads_a_full_fine_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, net = trained(tmp_path, "", monkeypatch)
    theirs = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32).eval()
    torch.testing.assert_close(logits_of(net), logits_of(theirs), rtol=1e-5, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer.chat_template
    assert tokenizer.eos_token == "<|im_end|>"
