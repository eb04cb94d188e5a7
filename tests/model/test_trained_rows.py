"""Rows of new tokens that are trained by themselves: values, gradients and files against PEFT's own layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_zoo import Saved, fill, net_of, plan_of, reference
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from ftkit.errors import ModelError
from ftkit.model.adapter import write_adapter_config
from ftkit.model.build import build_net
from ftkit.model.naming import adapter_files
from ftkit.model.plan import ModelPlan, TokenPlan
from ftkit.model.trained_rows import DELTA, TrainedRows

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft 0.21
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),
]

OLD, NEW = 97, 101  # rows of the vocabulary before and after
IDS = torch.tensor([[5, 97, 30, 99, 98, 6, 100, 7]])
TOKENS = TokenPlan(OLD, {97: (), 98: (3, 4), 99: ()})
KEYS: dict[str, Any] = {"adapter": "lora", "tokenizer_length": NEW, "tokens": TOKENS}
ENDS = {
    "llama": ("model.embed_tokens", "lm_head"),
    "llama-tied": ("model.embed_tokens",),
    "gpt-neox": ("gpt_neox.embed_in", "lm_head"),
    "gpt2": ("transformer.wte",),
    "gemma2": ("model.embed_tokens",),
    "qwen3": ("model.embed_tokens", "lm_head"),
}


def net_with_rows(folder: Path, **keys: Any) -> tuple[PreTrainedModel, ModelPlan]:
    plan = plan_of(folder, **{**KEYS, **keys})
    return fill(build_net(plan, dtype=torch.float32), plan), plan


def write(net: PreTrainedModel, plan: ModelPlan, folder: Path) -> Path:
    """The adapter in PEFT's files."""
    assert plan.adapter is not None
    parameters = dict(net.named_parameters(remove_duplicate=False))
    write_adapter_config(plan.adapter, folder)
    values = {name: parameters[mine].detach().clone() for name, mine in adapter_files(net).items()}
    save_file(values, folder / "adapter_model.safetensors")
    return folder


def loss(net: nn.Module) -> Tensor:
    """Of every token, so that every logit counts."""
    value: Tensor = nn.functional.cross_entropy(net(input_ids=IDS, use_cache=False).logits[0, :-1].float(), IDS[0, 1:])
    return value


def move(net: nn.Module) -> None:
    """Give what is trained other values, as training would."""
    torch.manual_seed(3)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)


@pytest.mark.parametrize("name", ENDS)
def test_only_the_new_rows_change(saved: Saved, name: str) -> None:
    net, _ = net_with_rows(saved(name))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss(net.train()).backward()
        optimizer.step()
    changed = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
    assert {f"{end}.{DELTA}" for end in ENDS[name]} <= changed
    assert all("lora_" in key or key.endswith(DELTA) for key in changed)
    for end in ENDS[name]:
        table = net.get_submodule(end)
        assert isinstance(table, TrainedRows)
        assert table.trainable_tokens_delta.shape == (NEW - OLD, 32)
        assert (table.trainable_tokens_delta - before[f"{end}.{DELTA}"]).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("name", ENDS)
def test_new_rows_start_as_the_mean_or_as_their_description(saved: Saved, name: str) -> None:
    net, _ = net_with_rows(saved(name))
    old = dict(reference(saved(name)).named_parameters())
    for end in ENDS[name]:
        rows, table = net.get_parameter(f"{end}.{DELTA}"), old[f"{end}.weight"]
        for index, wanted in enumerate((table.mean(0), table[[3, 4]].mean(0), table.mean(0), table.mean(0))):
            torch.testing.assert_close(rows[index], wanted)
        torch.testing.assert_close(net.get_parameter(f"{end}.base_layer.weight")[:OLD], table)


@pytest.mark.parametrize("name", ENDS)
def test_peft_loads_new_rows_with_equal_logits(saved: Saved, tmp_path: Path, name: str) -> None:
    net, plan = net_with_rows(saved(name))
    move(net)
    folder = write(net, plan, tmp_path)
    plain = reference(saved(name))
    plain.resize_token_embeddings(NEW, mean_resizing=False)
    theirs = PeftModel.from_pretrained(plain, folder).eval()
    with torch.no_grad():
        mine, wanted = net.eval()(input_ids=IDS, use_cache=False).logits, theirs(input_ids=IDS).logits
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
    assert len([key for key in load_file(folder / "adapter_model.safetensors") if DELTA in key]) == len(ENDS[name])


@pytest.mark.parametrize("name", ENDS)
def test_gradients_equal_those_of_pefts_layer(saved: Saved, tmp_path: Path, name: str) -> None:
    net, plan = net_with_rows(saved(name))
    move(net)
    plain = reference(saved(name))
    plain.resize_token_embeddings(NEW, mean_resizing=False)
    theirs = PeftModel.from_pretrained(plain, write(net, plan, tmp_path), is_trainable=True)
    loss(net.eval()).backward()  # GPT-2 has dropout
    loss(theirs.eval()).backward()
    wanted = {key.replace(".token_adapter", "").replace(".default", ""): p.grad for key, p in theirs.named_parameters()}
    for key, parameter in net.named_parameters():
        if parameter.requires_grad:
            theirs_of = wanted[f"base_model.model.{key}".replace(".default", "")]
            torch.testing.assert_close(parameter.grad, theirs_of, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_an_adapter_with_rows_goes_on(saved: Saved, tmp_path: Path, name: str) -> None:
    net, plan = net_with_rows(saved(name))
    move(net)
    again, _ = net_with_rows(saved(name), lora_model_dir=str(write(net, plan, tmp_path)))
    with torch.no_grad():
        assert torch.equal(net.eval()(input_ids=IDS).logits, again.eval()(input_ids=IDS).logits)
    assert all(p.requires_grad for key, p in again.named_parameters() if key.endswith(DELTA))


def test_rows_of_an_adapter_made_by_peft_go_on_in_their_order(saved: Saved, tmp_path: Path) -> None:
    plain = reference(saved("llama"))
    plain.resize_token_embeddings(NEW, mean_resizing=False)
    rows = {"embed_tokens": [99, 97, 5], "lm_head": [98, 99]}
    config = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", trainable_token_indices=rows)
    theirs = get_peft_model(plain, config)
    move(theirs)
    theirs.save_pretrained(tmp_path, save_embedding_layers=False)
    net, _ = net_with_rows(saved("llama"), lora_target_linear=None, lora_model_dir=str(tmp_path), lora_r=8)
    seen = torch.tensor([[5, 97, 30, 99, 6]])  # 98 and 100 were drawn by transformers there
    with torch.no_grad():
        mine, wanted = net.eval()(input_ids=seen).logits, theirs.eval()(input_ids=seen).logits
    known = [*range(97), 98, 99]
    torch.testing.assert_close(mine[..., known], wanted[..., known], rtol=1e-5, atol=1e-5)


def test_an_adapter_that_brings_whole_tables_goes_on_and_its_new_rows_are_trained(saved: Saved, tmp_path: Path) -> None:
    """What PEFT writes after `resize_token_embeddings` without any rows to train."""
    plain = reference(saved("llama"))
    plain.resize_token_embeddings(NEW, mean_resizing=False)
    theirs = get_peft_model(plain, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    move(theirs)
    theirs.save_pretrained(tmp_path, save_embedding_layers=True)
    net, _ = net_with_rows(saved("llama"), lora_target_linear=None, lora_model_dir=str(tmp_path), lora_r=8)
    with torch.no_grad():
        mine, wanted = net.eval()(input_ids=IDS).logits, theirs.eval()(input_ids=IDS).logits
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
    assert sorted(key for key, p in net.named_parameters() if p.requires_grad and key.endswith(DELTA)) == [
        f"lm_head.{DELTA}",
        f"model.embed_tokens.{DELTA}",
    ]


def test_a_new_token_in_a_spare_row_starts_anew_and_is_trained(saved: Saved) -> None:
    files = [file.read_bytes() for file in saved("llama").glob("*.safetensors")]
    net = net_of(saved("llama"), adapter="lora", tokens=TokenPlan(90, {90: (), 91: (3,)}, (7,)))
    assert files == [file.read_bytes() for file in saved("llama").glob("*.safetensors")], "a file's pages are not ours"
    old = reference(saved("llama")).get_input_embeddings().weight
    rows = net.get_parameter(f"model.embed_tokens.{DELTA}")
    for row, wanted in zip(rows, (old[7], old[:90].mean(0), old[3]), strict=True):
        torch.testing.assert_close(row, wanted)


def test_a_full_fine_tune_starts_new_tokens_anew_too(saved: Saved) -> None:
    net = net_of(saved("llama"), tokens=TokenPlan(90, {90: (), 91: (3,)}, (7,)))
    old = reference(saved("llama")).get_input_embeddings().weight
    table = net.get_input_embeddings().weight
    torch.testing.assert_close(table[90:92], torch.stack([old[:90].mean(0), old[3]]))
    torch.testing.assert_close(table[:90], old[:90])


def test_a_16_bit_base_trains_float32_rows(saved: Saved) -> None:
    plan = plan_of(saved("gemma2"), **KEYS)
    net, exact = (fill(build_net(plan, dtype=d), plan, d).train() for d in (torch.bfloat16, torch.float32))
    for autocast in (False, True):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = loss(net)
        assert abs(value - loss(exact)) < 0.05
        value.backward()
        gradient = net.get_parameter(f"model.embed_tokens.{DELTA}").grad
        assert gradient is not None
        assert gradient.dtype == torch.float32
        assert gradient.abs().amax(1).min() > 0


def test_rows_named_by_the_recipe_are_trained(saved: Saved) -> None:
    def indices(given: Any, **keys: Any) -> Any:
        plan = plan_of(saved("llama"), adapter="lora", peft_trainable_token_indices=given, **keys)
        assert plan.adapter is not None
        return plan.adapter.trainable_token_indices

    assert indices((3, 5)) == {"embed_tokens": [3, 5]}
    assert indices({"lm_head": (4,)}) == {"lm_head": [4]}
    assert indices((3,), tokenizer_length=98) == {"embed_tokens": [3, 97], "lm_head": [97]}
    with pytest.raises(ModelError) as caught:
        indices({"lm_head": (97,), "wte": (1,)})
    assert str(caught.value) == (
        "peft_trainable_token_indices: these rows cannot be trained by themselves, got wte, lm_head: 97\n"
        "help: there are 97 rows of model.embed_tokens and lm_head"
    )
