"""What a run leaves says where an answer ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from ftkit.cli.main import main
from tiny import sharegpt_rows, tiny_model

RECIPE = """base_model: {folder}/model
datasets:
  - path: {folder}/rows.jsonl
    type: sharegpt
output_dir: {folder}/out
learning_rate: 1e-3
max_steps: 1
chat_template: chatml
special_tokens:
  eos_token: "<|endoftext|>"
eot_tokens: ["<|im_end|>"]
{more}
"""


@pytest.mark.parametrize("more", ["adapter: lora\nlora_target_linear: true", ""], ids=["adapter", "model"])
def test_an_export_ends_at_the_templates_end_of_turn_too(tmp_path: Path, more: str) -> None:
    tiny_model(tmp_path / "model")
    sharegpt_rows(tmp_path / "rows.jsonl")
    (tmp_path / "recipe.yml").write_text(RECIPE.format(folder=tmp_path, more=more), encoding="utf8")
    assert main(["train", str(tmp_path / "recipe.yml")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.eos_token == "<|endoftext|>"
    for folder in (tmp_path / "out", tmp_path / "out" / "checkpoint-1"):
        ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        assert {"<|endoftext|>", "<|im_end|>"} <= set(tokenizer.convert_ids_to_tokens(ends))
