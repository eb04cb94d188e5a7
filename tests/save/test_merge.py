"""A merge is what PEFT's merge_and_unload makes, for every kind of adapter, and what a quantized run trained on."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from test_export import CPU
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from ftkit.errors import CheckpointError, ModelError
from ftkit.model.build import build_net
from ftkit.model.checkpoint_files import fingerprint
from ftkit.model.load import load_net
from ftkit.model.plan import plan_model
from ftkit.parallel.single import SingleBackend
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.quantization import QuantizationSection
from ftkit.save.merge import Merged, write_merged
from ftkit.save.merge_adapter import open_adapter, split_name
from ftkit.save.merge_base import Base
from ftkit.save.merge_check import Difference, check_merged, compare_layers
from tiny import tiny_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft 0.21
    pytest.mark.filterwarnings("ignore:.*(embedding layers found|ensure_weight_tying|fan_in_fan_out|tied).*"),  # peft
]
IDS = torch.arange(5, 45)[None]
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@torch.no_grad()
def logits(net: nn.Module, ids: Tensor = IDS) -> Tensor:
    values: Tensor = net(input_ids=ids, use_cache=False).logits
    return values


def load(folder: Path) -> PreTrainedModel:
    net: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return net.eval()


def trained(base: Path, folder: Path, change: Callable[[PreTrainedModel], None] | None = None, **config: Any) -> Tensor:
    """Save an adapter made with PEFT, moved as if trained; return the logits of PEFT's model with it."""
    net = load(base)
    if change is not None:
        change(net)
    config = {"r": 4, "lora_alpha": 8, "target_modules": LINEARS, "task_type": "CAUSAL_LM", **config}
    peft = get_peft_model(net, LoraConfig(**config))
    generator = torch.Generator().manual_seed(1)
    for parameter in peft.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of saved embeddings, and of biases that it takes for shards
        peft.save_pretrained(str(folder))
    values = logits(peft.eval())
    if not peft.config.tie_word_embeddings:  # there PEFT's own merge moves the head with the embedding
        torch.testing.assert_close(logits(peft.merge_and_unload()), values, rtol=1e-4, atol=1e-5)
    return values


def merge(base: Path, adapter: Path, out: Path, dtype: torch.dtype = torch.float32, **keys: Any) -> Difference:
    """Merge as the command does."""
    merged = Merged(Base(ModelSection(base_model=str(base)), **keys), open_adapter(adapter), dtype)
    out.mkdir()
    write_merged(merged, out, shard_bytes=60_000)
    return check_merged(merged, out, [IDS])


KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True, "lora_alpha": 3},
    "patterns": {"rank_pattern": {"q_proj": 2, r".*layers\.1\.mlp.*": 6}, "alpha_pattern": {"o_proj": 32}},
    "one layer": {"target_modules": r".*layers\.1\..*(q|down)_proj"},
    "copies of both ends": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "copy of a norm": {"modules_to_save": ["norm"]},
    "embedding": {"target_modules": [*LINEARS, "embed_tokens"]},
    "embedding dora": {"target_modules": [*LINEARS, "embed_tokens"], "use_dora": True},
    "head": {"target_modules": [*LINEARS, "lm_head"]},
    "rows": {"trainable_token_indices": [3, 7, 100]},
    "rows of both": {"trainable_token_indices": {"embed_tokens": [3, 7], "lm_head": [7, 9]}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_is_what_peft_computes(tmp_path: Path, kind: str) -> None:
    base = tiny_model(tmp_path / "base")
    expected = trained(base, tmp_path / "adapter", **KINDS[kind])
    found = merge(base, tmp_path / "adapter", tmp_path / "out")
    torch.testing.assert_close(logits(load(tmp_path / "out")), expected, rtol=1e-5, atol=1e-5)
    assert (expected - logits(load(base))).abs().max() > 0.01
    assert found.float32 < 1e-5 < 1e-3 < found.effect


TIED: dict[str, tuple[dict[str, Any], bool]] = {  # -> whether embedding and head are still one tensor
    "lora": ({}, True),
    "copy of the embedding": ({"modules_to_save": ["embed_tokens"]}, False),
    "copy of the head": ({"modules_to_save": ["lm_head"]}, False),
    "copies apart": ({"modules_to_save": ["embed_tokens", "lm_head"]}, False),
    "copies together": ({"modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}, True),
    "embedding": ({"target_modules": [*LINEARS, "embed_tokens"]}, False),
    "rows": ({"trainable_token_indices": [3, 7, 100]}, True),
}


@pytest.mark.parametrize("kind", TIED)
def test_a_tied_model_stays_tied_while_both_ends_agree(tmp_path: Path, kind: str) -> None:
    base = tiny_model(tmp_path / "base", tie_word_embeddings=True)
    config, stays = TIED[kind]
    expected = trained(base, tmp_path / "adapter", **config)
    merge(base, tmp_path / "adapter", tmp_path / "out")
    torch.testing.assert_close(logits(load(tmp_path / "out")), expected, rtol=1e-5, atol=1e-5)
    assert AutoConfig.from_pretrained(tmp_path / "out").tie_word_embeddings is stays
    assert ("lm_head.weight" in names_in(tmp_path / "out")) is not stays


def names_in(folder: Path) -> set[str]:
    return {name for file in folder.glob("*.safetensors") for name in load_file(file)}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("copies", [[], ["embed_tokens", "lm_head"]], ids=str)
def test_a_grown_vocabulary_comes_with_the_adapter(tmp_path: Path, copies: list[str], tied: bool) -> None:
    base = tiny_model(tmp_path / "base", tie_word_embeddings=tied)
    old = AutoConfig.from_pretrained(base).vocab_size

    def grow(net: PreTrainedModel) -> None:
        net.resize_token_embeddings(old + 3, mean_resizing=False)

    tie = {"ensure_weight_tying": True} if tied and copies else {}
    trained(base, tmp_path / "adapter", grow, modules_to_save=copies or None, **tie)
    merge(base, tmp_path / "adapter", tmp_path / "out")
    net = load(base)
    grow(net)
    theirs = PeftModel.from_pretrained(net, str(tmp_path / "adapter")).eval()
    ids = torch.arange(old - 3, old + 3)[None]
    torch.testing.assert_close(logits(load(tmp_path / "out"), ids), logits(theirs, ids), rtol=1e-5, atol=1e-5)
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.vocab_size, config.tie_word_embeddings) == (old + 3, tied)


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2": {"target_modules": ["q_proj", "v_proj"], "lora_bias": True},
    "mixtral": {"target_modules": ["q_proj", "o_proj"]},
    "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "use_dora": True},
    "gpt_neox": {"target_modules": ["query_key_value", "dense_h_to_4h"], "bias": "all"},
    "gemma2": {},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_merges(tmp_path: Path, architecture: str) -> None:
    base = tiny_model(tmp_path / "base", architecture)
    expected = trained(base, tmp_path / "adapter", **ARCHITECTURES[architecture])
    found = merge(base, tmp_path / "adapter", tmp_path / "out")
    torch.testing.assert_close(logits(load(tmp_path / "out")), expected, rtol=1e-5, atol=1e-5)
    assert names_in(tmp_path / "out") == names_in(base)
    assert found.effect > 1e-3


@pytest.mark.parametrize(
    "quantization",
    [{"load_in_4bit": True}, {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, {"load_in_8bit": True}],
    ids=str,
)
def test_a_faithful_merge_is_the_net_that_was_trained(tmp_path: Path, quantization: dict[str, Any]) -> None:
    base = tiny_model(tmp_path / "base")
    trained(base, tmp_path / "adapter", use_dora=True)
    section = QuantizationSection(**quantization)
    net = quantized_net(base, tmp_path / "adapter", section)
    merge(base, tmp_path / "adapter", tmp_path / "out", quantization=section)
    torch.testing.assert_close(logits(load(tmp_path / "out")), logits(net), rtol=1e-5, atol=1e-5)
    merge(base, tmp_path / "adapter", tmp_path / "plain")
    assert (logits(load(tmp_path / "plain")) - logits(net)).abs().max() > 1e-3, "the published base is another net"
    for folder in ("out", "plain"):
        assert "quantization_config" not in json.loads((tmp_path / folder / "config.json").read_text())


def quantized_net(base: Path, adapter: Path, quantization: QuantizationSection) -> PreTrainedModel:
    """The net of a run that continues the adapter on a quantized base."""
    section = AdapterSection(adapter="qlora", lora_model_dir=str(adapter))
    plan = plan_model(ModelSection(base_model=str(base)), quantization, section)
    net, backend = build_net(plan, dtype=torch.float32), SingleBackend(CPU)
    load_net(net, plan, backend.place_block, device=CPU.device, dtype=torch.float32)(net)
    return net.eval()


def test_every_merged_weight_is_the_base_and_its_product(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    trained(base, tmp_path / "adapter")
    merge(base, tmp_path / "adapter", tmp_path / "out")
    before, adapter = (
        load_file(base / "model.safetensors"),
        load_file(tmp_path / "adapter" / "adapter_model.safetensors"),
    )
    after = {
        name: value for file in (tmp_path / "out").glob("*.safetensors") for name, value in load_file(file).items()
    }
    assert before.keys() == after.keys()
    for name in before:
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        product = (
            adapter[f"{prefix}.lora_B.weight"] @ adapter[f"{prefix}.lora_A.weight"]
            if f"{prefix}.lora_A.weight" in adapter
            else 0
        )
        torch.testing.assert_close(
            after[name] - before[name], 2.0 * product * torch.ones_like(before[name]), rtol=0, atol=1e-6
        )


def test_sixteen_bits_are_rounded_once(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    trained(base, tmp_path / "adapter")
    merge(base, tmp_path / "adapter", tmp_path / "exact")
    found = merge(base, tmp_path / "adapter", tmp_path / "out", torch.bfloat16)
    assert 1e-4 < found.float32 < 0.05
    assert found.own is not None
    assert found.own < 0.1
    exact, rounded = (
        load(tmp_path / "exact").state_dict(),
        AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict(),
    )
    assert all(torch.equal(rounded[name], exact[name].bfloat16()) for name in exact)


def test_a_sample_of_layers_stands_for_what_is_too_large(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    trained(base, tmp_path / "adapter", use_dora=True)
    merged = Merged(Base(ModelSection(base_model=str(base))), open_adapter(tmp_path / "adapter"), torch.float32)
    write_merged(merged, tmp_path)
    found = compare_layers(merged, tmp_path)
    assert found.number == 4
    assert found.float32 < 1e-6 < 0.1 < found.effect


@pytest.mark.parametrize("layers", [False, True])
def test_a_wrong_merge_is_found(tmp_path: Path, layers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_model(tmp_path / "base")
    trained(base, tmp_path / "adapter")
    merged = Merged(Base(ModelSection(base_model=str(base))), open_adapter(tmp_path / "adapter"), torch.float32)
    for change in merged.adapter.changes.values():
        change.scaling *= 1.01
    write_merged(merged, tmp_path)
    if layers:
        for change in merged.adapter.changes.values():
            change.scaling /= 1.01
        monkeypatch.setattr("ftkit.save.merge_check.SHARE_OF_MEMORY", 0.0)
    with pytest.raises(CheckpointError, match=r"is not the adapter on its base: its (logits|layers) are off by"):
        check_merged(merged, tmp_path, [IDS])


# Names that other writers give to the same tensors.
@pytest.mark.parametrize(
    ("written", "module", "role"),
    [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.q_proj", "lora_A"),
        ("base_model.model.model.layers.0.mlp.up_proj.lora_B.default.weight", "model.layers.0.mlp.up_proj", "lora_B"),
        ("_orig_mod.base_model.model.model.layers.0.q_proj.lora_A.weight", "model.layers.0.q_proj", "lora_A"),
        ("base_model.model._orig_mod.model.layers.0.q_proj.lora_A.weight", "model.layers.0.q_proj", "lora_A"),
        ("module.base_model.model.model.h.0._checkpoint_wrapped_module.fc.lora_A.weight", "model.h.0.fc", "lora_A"),
        ("model.layers.0.q_proj.lora_magnitude_vector", "model.layers.0.q_proj", "lora_magnitude_vector"),
        (
            "model.layers.0.q_proj.lora_magnitude_vector.default.weight",
            "model.layers.0.q_proj",
            "lora_magnitude_vector",
        ),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "model.embed_tokens", "lora_embedding_A"),
        ("base_model.model.q.lora_B.bias", "q", "lora_B.bias"),
        ("base_model.model.e.token_adapter.trainable_tokens_delta", "e", "trainable_tokens_delta"),
        ("base_model.model.lm_head.modules_to_save.default.weight", "lm_head.weight", None),
        ("base_model.model.lm_head.modules_to_save.weight", "lm_head.weight", None),
        ("base_model.model.model.embed_tokens.base_layer.weight", "model.embed_tokens.weight", None),
    ],
)
def test_names_lose_what_others_put_around_them(written: str, module: str, role: str | None) -> None:
    assert split_name(written) == (module, role)


def test_adapters_in_torch_files_with_foreign_prefixes_merge(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    expected = trained(base, tmp_path / "adapter", modules_to_save=["lm_head"])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    renamed = {
        name.replace("base_model.model.", "base_model.model._orig_mod."): v for name, v in load_file(file).items()
    }
    torch.save(renamed, file.with_suffix(".bin"))
    file.unlink()
    merge(base, tmp_path / "adapter", tmp_path / "out")
    torch.testing.assert_close(logits(load(tmp_path / "out")), expected, rtol=1e-5, atol=1e-5)


def test_an_adapter_in_a_torch_file_runs_no_code(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    trained(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    torch.save({"base_model.model.q.lora_A.weight": Path("x")}, file.with_suffix(".bin"))
    file.unlink()
    with pytest.raises(ModelError, match="holds more than tensors"):
        open_adapter(tmp_path / "adapter")


def test_adapters_of_single_experts_merge_into_stacked_ones(tmp_path: Path) -> None:
    """transformers 4 had a linear an expert; adapters from then name what the files still hold."""
    base = tiny_model(tmp_path / "base", "mixtral")
    trained(base, tmp_path / "adapter", target_modules=["q_proj"])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    expert = "model.layers.1.block_sparse_moe.experts.2.w3"
    a, b = torch.randn(4, 64), torch.randn(128, 4)
    more = {f"base_model.model.{expert}.lora_A.weight": a, f"base_model.model.{expert}.lora_B.weight": b}
    save_file(load_file(file) | more, file)
    found = merge(base, tmp_path / "adapter", tmp_path / "out")
    assert found.what == "layers"
    before = load_file(base / "model.safetensors")
    after = {n: v for path in (tmp_path / "out").glob("*.safetensors") for n, v in load_file(path).items()}
    torch.testing.assert_close(
        after[f"{expert}.weight"] - before[f"{expert}.weight"], 2.0 * b @ a, rtol=1e-5, atol=1e-5
    )
    other = expert.replace("experts.2", "experts.1")
    assert torch.equal(after[f"{other}.weight"], before[f"{other}.weight"])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "parameters": ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
    "pissa": ({"init_lora_weights": "pissa"}, "init_lora_weights pissa"),
    "replicated": ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_not_a_plain_product_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    base = tiny_model(tmp_path / "base")
    trained(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    changed, said = BAD[kind]
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(ModelError, match=f"more than a merge into the base's weights, got {said}"):
        open_adapter(tmp_path / "adapter")


def test_another_base_is_refused(tmp_path: Path) -> None:
    trained(tiny_model(tmp_path / "base"), tmp_path / "adapter", modules_to_save=["model.norm"])
    wide = tiny_model(tmp_path / "wide", hidden_size=96)
    with pytest.raises(ModelError, match=r"of another base\n  model.norm.weight, got \(64,\), expected \(96,\)"):
        merge(wide, tmp_path / "adapter", tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    trained(tmp_path / "base", tmp_path / "plain")
    with pytest.raises(ModelError, match=r"of another base, whose weight is \(\d+, \d+\), got A"):
        merge(wide, tmp_path / "plain", tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    short = tiny_model(tmp_path / "short", num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"does not have\n  model\.layers\.1\.mlp\.down_proj\n"):
        merge(short, tmp_path / "plain", tmp_path / "out")


def test_a_base_with_other_weights_is_refused(tmp_path: Path) -> None:
    base, other = tiny_model(tmp_path / "base"), tiny_model(tmp_path / "other", seed=1)
    expected = fingerprint(str(base), None)
    shutil.copytree(base, tmp_path / "moved")
    Base(ModelSection(base_model=str(tmp_path / "moved")), expected=expected)
    with pytest.raises(ModelError, match="not the weights the adapter was trained on, got 1 files"):
        Base(ModelSection(base_model=str(other)), expected=expected)


def test_broken_adapters_are_refused(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    trained(base, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    save_file({n: t for n, t in tensors.items() if n != name}, file)
    with pytest.raises(ModelError, match=r"q_proj: the adapter is not whole, got lora_A alone"):
        open_adapter(tmp_path / "adapter")
    save_file(tensors | {name: torch.zeros(0)}, file)
    with pytest.raises(ModelError, match="empty tensor: it was saved while its weights were sharded"):
        open_adapter(tmp_path / "adapter")
    save_file(tensors | {name: tensors[name] * float("nan")}, file)
    with pytest.raises(ModelError, match=r"q_proj.weight: a merged weight is not finite"):
        merge(base, tmp_path / "adapter", tmp_path / "out")


@pytest.mark.parametrize("kind", ["4bit", "8bit"])
def test_a_base_that_is_quantized_in_its_files_is_dequantized(tmp_path: Path, kind: str) -> None:
    plain = tiny_model(tmp_path / "plain")
    options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"} if kind == "4bit" else {"load_in_8bit": True}
    quantized = AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, quantization_config=BitsAndBytesConfig(**options)
    )
    quantized.save_pretrained(tmp_path / "base")
    trained(plain, tmp_path / "adapter")
    net = quantized_net(tmp_path / "base", tmp_path / "adapter", QuantizationSection())
    merge(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    torch.testing.assert_close(logits(load(tmp_path / "out")), logits(net), rtol=1e-3, atol=1e-3)
    assert (logits(net) - logits(load(plain))).abs().max() > 0.01
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert names_in(tmp_path / "out") == names_in(plain)
