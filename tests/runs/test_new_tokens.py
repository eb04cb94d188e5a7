"""ChatML on a base that lacks its tokens: the model learns where an answer ends, and only the new rows change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from ftkit.cli.main import main
from ftkit.recipe import load_recipe
from ftkit.run import run
from tiny import TALK, sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets: [{{path: {folder}/rows.jsonl, type: sharegpt}}]
chat_template: chatml
special_tokens: {{eos_token: "<|im_end|>"}}
tokens: ["<|im_start|>"]
output_dir: {folder}/out
dataset_prepared_path: {folder}/prepared
learning_rate: 1e-2
save_strategy: "no"
lr_scheduler: constant
micro_batch_size: 4
max_steps: {steps}
sample_prompts: ["What colour is the sky?"]
{more}
"""
LORA = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true"


def finished(folder: Path, more: str, steps: int = 40, **shape: Any) -> Path:
    """Run the recipe on a tiny base without ChatML's tokens; return its output folder."""
    ids = {"eos_token_id": 0, "pad_token_id": 1, "bos_token_id": None}  # as the base's tokenizer has them
    tiny_model(folder / "model", chatml=False, initializer_range=0.1, **ids, **shape)  # 0.02 makes flat logits
    sharegpt_rows(folder / "rows.jsonl")
    (folder / "recipe.yml").write_text(RECIPE.format(folder=folder, more=more, steps=steps), encoding="utf8")
    return run(load_recipe(folder / "recipe.yml")).output_dir


def generated(net: Any, tokenizer: Any, settings: GenerationConfig, question: str) -> list[int]:
    """The ids of a greedy answer, as anybody would ask for it with what the run has saved."""
    turns = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    settings.max_new_tokens = 40
    written = net.generate(**ids, generation_config=settings)
    answer: list[int] = written[0, ids["input_ids"].shape[1] :].tolist()
    return answer


@pytest.mark.parametrize("tied", [False, True])
def test_generation_stops_by_itself_after_training_new_rows_alone(tmp_path: Path, tied: bool) -> None:
    output = finished(tmp_path, LORA, tie_word_embeddings=tied)
    tokenizer, settings = AutoTokenizer.from_pretrained(output), GenerationConfig.from_pretrained(output)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    old = base.get_input_embeddings().weight.detach().clone()
    base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    net = PeftModel.from_pretrained(base, output).eval()
    for question, answer in TALK:
        ids = generated(net, tokenizer, settings, question)
        assert tokenizer.decode(ids) == f"{answer}<|im_end|>"
    stored = load_file(output / "adapter_model.safetensors")
    rows = [name for name in stored if "lora_" not in name]
    ends = ["model.embed_tokens"] if tied else ["lm_head", "model.embed_tokens"]
    assert sorted(rows) == [f"base_model.model.{end}.token_adapter.trainable_tokens_delta" for end in ends]
    merged = net.merge_and_unload()
    assert torch.equal(merged.get_input_embeddings().weight[: len(old)], old)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.eos_token_id == end
    assert settings.eos_token_id == [0, end]  # the base's own end of text stays an end
    assert settings.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert main(["merge", str(output), "--dtype", "float32", "--out", str(tmp_path / "merged")]) == 0
    alone = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tokenizer, settings = (kind.from_pretrained(tmp_path / "merged") for kind in (AutoTokenizer, GenerationConfig))
    assert tokenizer.decode(generated(alone, tokenizer, settings, TALK[0][0])) == f"{TALK[0][1]}<|im_end|>"
    assert alone.config.eos_token_id == settings.eos_token_id == [0, end]
    assert alone.config.tie_word_embeddings is tied


def test_a_full_fine_tune_stops_too_and_its_configs_agree(tmp_path: Path) -> None:
    output = finished(tmp_path, "", steps=30)
    tokenizer, settings = AutoTokenizer.from_pretrained(output), GenerationConfig.from_pretrained(output)
    net = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)
    question, answer = TALK[0]
    assert tokenizer.decode(generated(net, tokenizer, settings, question)) == f"{answer}<|im_end|>"
    config = net.config
    assert config.eos_token_id == settings.eos_token_id == [0, tokenizer.eos_token_id]
    assert config.pad_token_id == settings.pad_token_id == tokenizer.pad_token_id
    assert config.vocab_size == len(tokenizer) == net.get_input_embeddings().weight.shape[0]


def test_the_audit_says_what_the_tokens_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = finished(tmp_path, LORA + "\nresize_token_embeddings_to_32x: true", steps=1)
    tokenizer, said = AutoTokenizer.from_pretrained(output), capsys.readouterr().out
    tokens = json.loads((output / "run.json").read_text())["tokens"]
    end, start = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    length = len(tokenizer)
    rows = -(-length // 32) * 32
    assert tokens == {
        "end of text": f"<|im_end|> ({end})",
        "padding": f"<pad> ({tokenizer.pad_token_id})",
        "begin of text": "none",
        "an answer ends at": f"<|endoftext|> (0) or <|im_end|> ({end})",
        "chat template": "saved with the tokenizer",
        "vocabulary": f"{length} tokens, {rows} rows, {rows - length + 2} of them new",
        "new tokens": f"<|im_end|> ({end}), <|im_start|> ({start}); their rows alone are trained, "
        "in model.embed_tokens and lm_head",
    }
    assert f"<|im_end|> ({end})" in said
