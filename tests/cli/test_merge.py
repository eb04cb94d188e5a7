"""`ftkit merge` on what runs leave, and the faults of merging that others have had (MRG-* of the corpus)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from ftkit.cli.main import main
from ftkit.save.merge_check import Difference
from tiny import sharegpt_rows, tiny_model


@torch.no_grad()
def logits(net: nn.Module) -> Tensor:
    values: Tensor = net.eval()(input_ids=torch.arange(5, 45)[None], use_cache=False).logits
    return values


def load(folder: Path) -> nn.Module:
    net: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return net


def fault(corpus: Path, name: str) -> tuple[str, str]:
    """The recipe and the rows of a fault."""
    lines = (corpus / "faults" / "faults.jsonl").read_text(encoding="utf8").splitlines()
    text = next(row["input"] for row in map(json.loads, lines) if row["id"] == name)
    recipe, _, rest = text.removeprefix("# recipe.yml\n").partition("# data.jsonl\n")
    return recipe, rest.partition("# command\n")[0]


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each fault's recipe, with `tiny` as its base and a checkpoint after the first step."""
    folders = {}
    for name in ("MRG-01", "MRG-05"):
        folder = tmp_path_factory.mktemp(name)
        recipe, rows = fault(corpus, name)
        (folder / "data.jsonl").write_text(rows, encoding="utf8")
        tiny_model(folder / "tiny", num_hidden_layers=1)
        recipe = recipe.replace("./", f"{folder}/").replace("data.jsonl", f"{folder}/data.jsonl")
        more = f"save_steps: 1\nmax_steps: 2\ndataset_prepared_path: {folder}/cache\nsample_prompts: [hi]\n"
        (folder / "recipe.yml").write_text(recipe + more, encoding="utf8")
        assert main(["train", str(folder / "recipe.yml"), "learning_rate=0.05"]) == 0
        folders[name] = folder
    return folders


def reference(run: Path, adapter: str = "out") -> Tensor:
    """Base and adapter as PEFT computes them in float32."""
    net = load(run / "tiny")
    net.resize_token_embeddings(len(AutoTokenizer.from_pretrained(run / "out")))  # type: ignore[operator]
    return logits(PeftModel.from_pretrained(net, str(run / adapter)))


def test_mrg_01_a_qlora_merges_into_the_base_in_full_precision(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = runs["MRG-01"], tmp_path / "merged"
    assert main(["merge", str(run / "recipe.yml"), "--dtype", "float32", "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"base {run}/tiny, as published" in said
    torch.testing.assert_close(logits(load(out)), reference(run), rtol=0, atol=1e-5)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    assert {type(module) for module in load(out).modules() if hasattr(module, "in_features")} == {nn.Linear}
    assert AutoTokenizer.from_pretrained(out).eos_token == "<|im_end|>"
    assert AutoTokenizer.from_pretrained(out).chat_template


def test_mrg_01_a_faithful_merge_says_so_and_is_another_model(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = runs["MRG-01"], tmp_path / "merged"
    words = ["merge", str(run / "out"), "--dtype", "float32", "--out", str(out)]
    assert main([*words, "--faithful", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["base_as"] == "nf4, dequantized"
    found = Difference(**report["check"])
    assert found.float32 < 1e-5 < 1e-3 < found.effect
    assert 1e-4 < (logits(load(out)) - reference(run)).abs().max() < 1
    assert "quantization_config" not in json.loads((out / "config.json").read_text())


def test_mrg_05_a_moved_base_is_named_and_can_be_given(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["MRG-05"], run)
    recipe = (run / "recipe.yml").read_text(encoding="utf8").replace(str(runs["MRG-05"]), str(run))
    (run / "recipe.yml").write_text(recipe, encoding="utf8")
    (run / "tiny").rename(run / "tiny2")
    words = ["merge", str(run / "recipe.yml"), "--dtype", "float32"]
    assert main(words) == 4
    assert capsys.readouterr().err.endswith(
        f"error: base_model of {run}/recipe.yml: the base model is not there, got {run}/tiny\n"
        "help: give the folder it lies in now with --base\n"
    )
    assert not (run / "out" / "merged").exists()
    assert main([*words, "--base_model", str(run / "tiny2")]) == 0  # the same weights, so the same fingerprint
    torch.testing.assert_close(logits(load(run / "out" / "merged")), reference(runs["MRG-05"]), rtol=0, atol=1e-5)


def test_mrg_05_another_base_is_refused(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs["MRG-05"]
    words = ["merge", str(run / "recipe.yml"), "--out", str(tmp_path / "out"), "--base"]
    other = tiny_model(tmp_path / "other", num_hidden_layers=1, seed=1)
    wide = tiny_model(tmp_path / "wide", num_hidden_layers=1, hidden_size=96)
    assert main([*words, str(other)]) == 4
    assert "these are not the weights the adapter was trained on, got 1 files" in capsys.readouterr().err
    assert main([*words, str(wide), "--any-base"]) == 4
    assert (
        "the adapter is of another base\n  lm_head.weight, got (362, 64), expected (362, 96)" in capsys.readouterr().err
    )
    assert list(tmp_path.glob("out*")) == [], "nothing is left of a merge that failed"
    assert main([*words, str(other), "--any-base"]) == 0


@pytest.mark.parametrize("named", [None, "/scratch/job-17/base"])
def test_mrg_05_the_base_of_an_adapter_alone(
    runs: dict[str, Path], tmp_path: Path, named: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    run, adapter = runs["MRG-05"], tmp_path / "adapter"
    shutil.copytree(run / "out", adapter, ignore=shutil.ignore_patterns("checkpoint-*", "recipe.yml", "run.json"))
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": named}))
    assert main(["merge", str(adapter)]) == 4
    what = "the adapter does not say what its base is, got null"
    if named:
        what = f"the base model is not there, got {named}"
    assert f"error: {file}: {what}\nhelp: give the folder it lies in now with --base\n" in capsys.readouterr().err
    assert main(["merge", str(adapter), "--base", str(run / "tiny"), "--dtype", "float32"]) == 0
    torch.testing.assert_close(logits(load(adapter / "merged")), reference(run), rtol=0, atol=1e-5)


def test_mrg_06_a_checkpoint_merges(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["MRG-05"]
    expected = reference(run, "out/checkpoint-1")
    assert (expected - reference(run)).abs().max() > 1e-3
    words = ["--dtype", "float32", "--shard-size", "100KB"]
    asked = [
        [str(run / "recipe.yml"), "--lora_model_dir", str(run / "out" / "checkpoint-1")],
        [str(run / "recipe.yml"), f"lora_model_dir={run}/out/checkpoint-1"],
        [str(run / "out" / "checkpoint-1")],
    ]
    for number, given in enumerate(asked):
        out = tmp_path / str(number)
        assert main(["merge", *given, *words, "--out", str(out)]) == 0
        torch.testing.assert_close(logits(load(out)), expected, rtol=0, atol=1e-5)
        assert len(list(out.glob("model-*.safetensors"))) > 1


def test_mrg_06_shards_of_a_training_state_are_named(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out" / "checkpoint-1"
    (folder / "pytorch_model_fsdp_0").mkdir(parents=True)
    assert main(["merge", str(runs["MRG-05"] / "recipe.yml"), "--lora_model_dir", str(folder)]) == 4
    said = capsys.readouterr().err
    assert (
        f"error: adapter: {folder}: the folder holds no adapter, adapter_config.json and adapter_model.safetensors or "
        "adapter_model.bin are missing; it holds shards of a training state, got pytorch_model_fsdp_0\n"
    ) in said
    shutil.copytree(runs["MRG-05"] / "out" / "checkpoint-2", folder.parent / "checkpoint-2")
    assert main(["merge", str(folder)]) == 4
    assert f"help: give one that does: {folder.parent}/checkpoint-2\n" in capsys.readouterr().err


def test_nothing_is_overwritten(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "note").write_text("mine")
    assert main(["merge", str(runs["MRG-05"] / "out"), "--out", str(tmp_path)]) == 6
    assert f"{tmp_path}: there is something already, and nothing is overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


WRONG: dict[str, tuple[list[str], int, str]] = {
    "size": (["--shard-size", "5 apples"], 2, "--shard-size: a size is a number of bytes, got 5 apples"),
    "faithful": (["--faithful"], 4, "--faithful: the run's base was not quantized, so there is nothing to dequantize"),
    "key": (["lora_rr=4"], 2, "no key is called `lora_rr`"),
    "adapter": (["--adapter", "/nowhere"], 4, "adapter: /nowhere: no such folder"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_one_error(
    runs: dict[str, Path], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, code, said = WRONG[kind]
    assert main(["merge", str(runs["MRG-05"] / "recipe.yml"), "--out", str(tmp_path / "out"), *words]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_whole_model_needs_no_merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_model(tmp_path / "tiny", num_hidden_layers=1)
    assert main(["merge", str(tmp_path / "tiny")]) == 4
    assert "it holds a whole model, which needs no merge" in capsys.readouterr().err


def test_rows_without_values_are_noted(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tokenizer that knows more tokens than base and adapter have rows."""
    run = tmp_path / "run"
    shutil.copytree(runs["MRG-05"], run)
    tokenizer: Any = AutoTokenizer.from_pretrained(run / "out")
    tokenizer.add_tokens(["<later>"])
    tokenizer.save_pretrained(run / "out")
    assert main(["merge", str(run / "out"), "--out", str(tmp_path / "out")]) == 0
    assert "lm_head.weight: 1 rows of new tokens are in neither base nor adapter" in " ".join(
        capsys.readouterr().out.split()
    )
    assert AutoConfig.from_pretrained(tmp_path / "out").vocab_size == len(tokenizer)


def test_trained_rows_of_new_tokens_are_merged(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["MRG-01"], run)
    words = [
        "lora_modules_to_save=",
        f"output_dir={run}/rows",
        "learning_rate=0.05",
        'tokens=["<|im_start|>", "<new>"]',
    ]
    assert main(["train", str(run / "recipe.yml"), *words]) == 0
    assert main(["merge", str(run / "rows"), "--dtype", "float32", "--out", str(tmp_path / "merged")]) == 0
    net = load(run / "tiny")
    net.resize_token_embeddings(len(AutoTokenizer.from_pretrained(run / "rows")))  # type: ignore[operator]
    expected = logits(PeftModel.from_pretrained(net, str(run / "rows")))
    torch.testing.assert_close(logits(load(tmp_path / "merged")), expected, rtol=0, atol=1e-5)
    before = AutoConfig.from_pretrained(run / "tiny").vocab_size
    assert AutoConfig.from_pretrained(tmp_path / "merged").vocab_size > before


def test_an_adapter_of_loftq_merges_into_its_quantized_base_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model(tmp_path / "tiny", num_hidden_layers=1)
    sharegpt_rows(tmp_path / "rows.jsonl")
    (tmp_path / "recipe.yml").write_text(
        f"base_model: {tmp_path}/tiny\ndatasets: [{{path: {tmp_path}/rows.jsonl, type: sharegpt}}]\n"
        f"output_dir: {tmp_path}/out\nadapter: lora\nlora_target_linear: true\nmax_steps: 1\nlearning_rate: 1e-2\n"
        "peft: {loftq_config: {loftq_bits: 4}}\n",
        encoding="utf8",
    )
    assert main(["train", str(tmp_path / "recipe.yml")]) == 0
    assert main(["merge", str(tmp_path / "out")]) == 4
    assert "corrects the rounding of its quantized base (LoftQ)" in capsys.readouterr().err
    assert main(["merge", str(tmp_path / "out"), "--faithful", "--dtype", "float32"]) == 0
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=False)
    base = AutoModelForCausalLM.from_pretrained(
        tmp_path / "tiny", dtype=torch.float32, quantization_config=four_bits
    ).dequantize()
    expected = logits(PeftModel.from_pretrained(base, tmp_path / "out"))
    torch.testing.assert_close(logits(load(tmp_path / "out" / "merged")), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # starts two processes
def test_mrg_06_a_checkpoint_of_sharded_ranks_merges(corpus: Path, tmp_path: Path) -> None:
    """Two ranks with SHARDED_STATE_DICT: a checkpoint is what one process would have saved at that step."""
    recipe, rows = fault(corpus, "MRG-06")
    (tmp_path / "data.jsonl").write_text(rows, encoding="utf8")
    tiny_model(tmp_path / "tiny", num_hidden_layers=1)
    recipe = recipe.replace("./", f"{tmp_path}/").replace("data.jsonl", f"{tmp_path}/data.jsonl")
    (tmp_path / "recipe.yml").write_text(f"{recipe}dataset_prepared_path: {tmp_path}/cache\n", encoding="utf8")
    same = ["optimizer=sgd", "learning_rate=1", "num_epochs=", "max_steps=2"]
    words = ["train", str(tmp_path / "recipe.yml"), *same]
    assert main([*words, "fsdp=", "fsdp_config=", f"output_dir={tmp_path}/single"]) == 0
    two = [sys.executable, "-m", "ftkit.cli.main", *words, "micro_batch_size=1", "--processes", "2"]
    source = str(Path(__file__).resolve().parents[2] / "src")
    subprocess.run(two, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": source}, timeout=300)
    assert any((tmp_path / "out" / "checkpoint-1" / "shards").iterdir())
    for step in (1, 2):
        place, out = str(tmp_path / "out" / f"checkpoint-{step}"), tmp_path / f"merged-{step}"
        merging = ["merge", str(tmp_path / "recipe.yml"), "--lora_model_dir", place, "--out", str(out)]
        assert main([*merging, "--dtype", "float32"]) == 0
        net = load(tmp_path / "tiny")
        net.resize_token_embeddings(len(AutoTokenizer.from_pretrained(place)))  # type: ignore[operator]
        expected = logits(PeftModel.from_pretrained(net, str(tmp_path / "single" / f"checkpoint-{step}")))
        torch.testing.assert_close(logits(load(out)), expected, rtol=1e-4, atol=1e-4)
        assert (expected - logits(load(tmp_path / "tiny"))[..., : expected.shape[-1]]).abs().max() > 0.01
