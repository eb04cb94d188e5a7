from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from model_zoo import Saved, fill, net_of, packed, plan_of, reference
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from ftkit.errors import ModelError
from ftkit.model.adapter import write_adapter_config
from ftkit.model.build import build_net
from ftkit.model.naming import adapter_files, owner
from ftkit.model.plan import plan_model
from ftkit.model.quantized import QuantizedLinear
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.quantization import QuantizationSection

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft 0.21
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning"),  # the head in its file
    pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning"),
]

BOTH = ("embed_tokens", "lm_head")
EXISTING = "down_proj, embed_tokens, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"


def trained(folder: Path, **keys: Any) -> PreTrainedModel:
    """ftkit's net with an adapter that does something."""
    net = net_of(folder, **{"adapter": "lora", **keys}).eval()
    torch.manual_seed(2)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return net


def exported(net: PreTrainedModel, to: Path, folder: Path, **keys: Any) -> Path:
    """The adapter of `net` in PEFT's files."""
    write_adapter_config(plan_of(folder, **{"adapter": "lora", **keys}).adapter, to)
    parameters = dict(net.named_parameters())
    save_file(
        {name: parameters[mine].detach().clone() for name, mine in adapter_files(net).items()},
        to / "adapter_model.safetensors",
    )
    return to


def dequantized(net: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The plain transformers model with the weights `net` computes with."""
    plain = reference(folder)
    for name, parameter in plain.named_parameters():
        module, _ = owner(net, name)
        if isinstance(module, QuantizedLinear) and name.endswith("weight"):
            parameter.data = module.weight_in(torch.float32)
    return plain


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", {}),
        ("llama", {"adapter": "qlora", "load_in_4bit": True}),
        ("llama", {"lora_target_modules": ("q_proj", "down_proj"), "peft_use_rslora": True}),
        ("llama", {"lora_target_modules": r"model\.layers\.1\..*proj"}),
        ("llama", {"lora_modules_to_save": BOTH}),
        ("llama", {"lora_modules_to_save": ("lm_head",), "adapter": "qlora", "load_in_4bit": True}),
        ("llama-tied", {"lora_modules_to_save": BOTH}),
        ("llama-tied", {"lora_modules_to_save": ("embed_tokens",)}),
        ("llama-tied", {}),
        ("mixtral", {"adapter": "qlora", "load_in_4bit": True}),
        ("qwen2", {"adapter": "qlora", "load_in_4bit": True}),
        ("phi3", {}),
        ("gpt-neox", {}),
        ("gpt2", {}),
        ("llama", {"peft_use_dora": True}),
        ("llama", {"peft_layers_to_transform": (1,)}),
        ("llama", {"lora_rank_pattern": {"q_proj": 7}, "lora_alpha_pattern": {r"layers\.1\..*_proj": 3.5}}),
        ("llama", {"lora_rank_pattern": {"down_proj": 2}, "peft_use_rslora": True, "load_in_4bit": True}),
        ("qwen2", {"peft_use_dora": True, "adapter": "qlora", "load_in_4bit": True}),
    ],
    ids=str,
)
def test_peft_loads_the_adapter_and_gives_the_same_logits(
    saved: Saved, tmp_path: Path, name: str, keys: dict[str, Any]
) -> None:
    net, row = trained(saved(name), **keys), packed([11])
    folder = exported(net, tmp_path, saved(name), **keys)
    plain = dequantized(net, saved(name))
    theirs = PeftModel.from_pretrained(plain, folder).eval()
    with torch.no_grad():
        mine, wanted, base = (
            net(**row).logits,
            theirs(input_ids=row["input_ids"]).logits,
            reference(saved(name))(input_ids=row["input_ids"]).logits,
        )
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
    assert (mine - base).abs().max() > 1e-2


@pytest.mark.parametrize("keys", [{}, {"lora_modules_to_save": BOTH}], ids=str)
def test_an_adapter_made_by_peft_goes_on_in_ftkit(saved: Saved, tmp_path: Path, keys: dict[str, Any]) -> None:
    torch.manual_seed(4)
    config = LoraConfig(
        r=3,
        lora_alpha=5,
        target_modules=["q_proj", "up_proj"],
        task_type="CAUSAL_LM",
        modules_to_save=list(keys.get("lora_modules_to_save", ())) or None,
    )
    theirs = get_peft_model(reference(saved("llama")), config, autocast_adapter_dtype=True)
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    net, row = (
        net_of(
            saved("llama"),
            adapter="lora",
            lora_r=3,
            lora_alpha=5,
            lora_target_modules=("q_proj", "up_proj"),
            lora_model_dir=str(tmp_path),
        ),
        packed([11]),
    )
    with torch.no_grad():
        torch.testing.assert_close(
            net(**row).logits, theirs.eval()(input_ids=row["input_ids"]).logits, rtol=1e-5, atol=1e-5
        )
    assert all(p.requires_grad == ("lora_" in n or "modules_to_save" in n) for n, p in net.named_parameters())


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"layers.1.mlp.up_proj": 9}},
        {"layers_to_transform": [1], "layers_pattern": "layers"},
        {"target_modules": ["up_proj", "q_proj", "lm_head"]},
        {"target_modules": r".*layers\.0\..*(q|up)_proj"},
        {"init_lora_weights": "gaussian"},
        {"modules_to_save": ["lm_head"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("binary", [False, True])
def test_every_kind_of_adapter_made_by_peft_goes_on(
    saved: Saved, tmp_path: Path, settings: dict[str, Any], binary: bool
) -> None:
    torch.manual_seed(4)
    given: dict[str, Any] = {"r": 3, "lora_alpha": 5, "target_modules": ["up_proj", "q_proj"], **settings}
    theirs = get_peft_model(reference(saved("llama")), LoraConfig(task_type="CAUSAL_LM", **given))
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path / "theirs")
    if binary:  # PEFT's old format
        file = tmp_path / "theirs" / "adapter_model.safetensors"
        torch.save(load_file(file), tmp_path / "theirs" / "adapter_model.bin")
        file.unlink()
    keys = {"lora_target_linear": None, "lora_r": 3, "lora_alpha": 5, "lora_model_dir": str(tmp_path / "theirs")}
    net, row = net_of(saved("llama"), adapter="lora", **keys), packed([11])
    with torch.no_grad():
        wanted = theirs.eval()(input_ids=row["input_ids"]).logits
        torch.testing.assert_close(net.eval()(**row).logits, wanted, rtol=1e-5, atol=1e-5)
    (tmp_path / "mine").mkdir()
    mine = exported(net, tmp_path / "mine", saved("llama"), **keys)  # and back
    with torch.no_grad():
        again = PeftModel.from_pretrained(reference(saved("llama")), mine).eval()(input_ids=row["input_ids"]).logits
    torch.testing.assert_close(again, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bias": "all"}, "got bias 'all'"),
        ({"init_lora_weights": "pissa"}, "got init_lora_weights 'pissa', which changes the base"),
    ],
)
def test_adapters_that_ftkit_cannot_compute_are_refused(
    saved: Saved, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], **settings).save_pretrained(str(tmp_path))
    with pytest.raises(ModelError, match=f"this kind of LoRA cannot go on in ftkit, {said}"):
        plan_of(saved("llama"), adapter="lora", lora_target_linear=None, lora_model_dir=str(tmp_path))


def test_ranks_blocks_and_patterns_are_pefts(saved: Saved) -> None:
    patterns = {"lora_rank_pattern": {"q_proj": 7}, "lora_alpha_pattern": {"q_proj": 21}}
    net = net_of(saved("llama"), adapter="lora", peft_layers_to_transform=1, **patterns)
    layers = {name: m for name, m in net.named_modules() if hasattr(m, "lora_A") and m.lora_A}
    assert {name.split(".")[2] for name in layers} == {"1"}
    ranks = {name.rpartition(".")[2]: (m.r["default"], m.scaling["default"]) for name, m in layers.items()}
    assert ranks.pop("q_proj") == (7, 3.0)
    assert set(ranks.values()) == {(4, 2.0)}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"peft_layers_to_transform": (0, 2)},
            "peft_layers_to_transform: these blocks cannot be chosen, got 2\n"
            "help: peft_layers_to_transform lists blocks, 0 to 1",
        ),
        (
            {"peft_layers_to_transform": (0,), "lora_target_modules": ".*q_proj"},
            "peft_layers_to_transform: these blocks cannot be chosen, got lora_target_modules: .*q_proj\n"
            r"help: choose the blocks in the regular expression: .*layers\.[0-3]\..*",
        ),
        (
            {"peft_layers_pattern": "layers"},
            "peft_layers_pattern: these blocks cannot be chosen, got no blocks\n"
            "help: peft_layers_to_transform lists blocks, 0 to 1",
        ),
        (
            {"lora_rank_pattern": {"q_proj": 0, "w1": 8}, "lora_target_modules": ("q_proj",)},
            "lora_rank_pattern: no adapted module takes these, got q_proj: 0, w1\n"
            "help: give positive numbers for q_proj",
        ),
        (
            {"lora_alpha_pattern": {"q_proj": "much"}, "lora_target_modules": ("q_proj",)},
            "lora_alpha_pattern: no adapted module takes these, got q_proj: much\n"
            "help: give positive numbers for q_proj",
        ),
        (
            {"lora_fan_in_fan_out": True},
            "lora_fan_in_fan_out: the linears of LlamaForCausalLM keep their weights as (out, in), got true\n"
            "help: take it out: ftkit sees by itself how a model keeps them",
        ),
    ],
)
def test_options_that_fit_nothing_are_one_clear_error(saved: Saved, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError) as caught:
        plan_of(saved("llama"), adapter="lora", **keys)
    assert str(caught.value) == text


def test_a_recipe_that_contradicts_the_adapter_it_continues_is_refused(saved: Saved, tmp_path: Path) -> None:
    exported(trained(saved("llama")), tmp_path, saved("llama"))
    with pytest.raises(ModelError, match=r"contradicts the adapter it continues, got lora_r 7 \(the adapter has 4\)"):
        plan_of(saved("llama"), adapter="lora", lora_r=7, lora_model_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"lora_target_linear": True}, r"lora_target_linear true \(the adapter is on 4 modules: q_proj, v_proj\)"),
        (
            {"lora_target_modules": ("q_proj", "down_proj")},
            r"lora_target_modules \[q_proj, down_proj\] \(the adapter is on 4 modules: q_proj, v_proj\)",
        ),
        ({"lora_target_modules": ".*q_proj"}, r"lora_target_modules \.\*q_proj \(the adapter is on 4"),
        ({"lora_modules_to_save": BOTH}, r"lora_modules_to_save \[embed_tokens, lm_head\] \(the adapter has \[\]\)"),
        ({"peft_use_dora": True}, r"peft_use_dora true \(the adapter has false\)"),
        ({"peft_use_rslora": False}, r"peft_use_rslora false \(the adapter has true\)"),
        ({"lora_alpha": 5, "lora_r": 3}, r"lora_r 3 \(the adapter has 4\), lora_alpha 5 \(the adapter has 8\)"),
    ],
    ids=str,
)
def test_every_key_that_contradicts_the_adapter_is_named(
    saved: Saved, tmp_path: Path, keys: dict[str, Any], text: str
) -> None:
    adapter: dict[str, Any] = {"lora_target_modules": ("q_proj", "v_proj"), "peft_use_rslora": True}
    exported(trained(saved("llama"), **adapter), tmp_path, saved("llama"), **adapter)
    model, continued = (
        ModelSection(base_model=str(saved("llama"))),
        {"adapter": "lora", "lora_model_dir": str(tmp_path)},
    )
    with pytest.raises(ModelError, match=f"contradicts the adapter it continues, got {text}"):
        plan_model(model, QuantizationSection(), AdapterSection(**continued, **keys))
    repeated = {"lora_target_modules": r".*\.(q|v)_proj", "peft_use_rslora": True, "lora_r": 4}
    for same in ({}, repeated):
        plan = plan_model(model, QuantizationSection(), AdapterSection(**continued, **same))
        assert plan.adapter is not None
        assert plan.adapter.use_rslora is True
        assert len(plan.adapted) == 4


def test_an_adapter_on_all_linears_contradicts_lora_target_linear_false(saved: Saved, tmp_path: Path) -> None:
    exported(trained(saved("llama")), tmp_path, saved("llama"))
    with pytest.raises(ModelError, match=r"got lora_target_linear false \(the adapter is on 14 modules"):
        plan_of(saved("llama"), adapter="lora", lora_target_linear=False, lora_model_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "adapter_config.json cannot be read"),
        ("[]", "adapter_config.json cannot be read"),
        ('{"peft_type": "IA3"}', "got peft_type IA3"),
        ('{"peft_type": "LORA", "r": "four", "target_modules": ["q_proj"]}', "got r 'four'"),
        ('{"peft_type": "LORA", "r": 4}', "got target_modules None"),
    ],
)
def test_a_broken_configuration_of_an_adapter_is_clear(saved: Saved, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ModelError, match=said) as caught:
        plan_of(saved("llama"), adapter="lora", lora_model_dir=str(tmp_path))
    assert caught.value.where == f"lora_model_dir: {tmp_path}"
    assert caught.value.help


def test_an_adapter_of_another_model_is_refused(saved: Saved, tmp_path: Path) -> None:
    exported(trained(saved("llama")), tmp_path, saved("llama"))
    save_file({"base_model.model.other.lora_A.weight": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    plan = plan_of(saved("llama"), adapter="lora", lora_model_dir=str(tmp_path))
    with pytest.raises(
        ModelError, match=r"the adapter does not fit the net\n  missing: base_model.model.model.layers.0"
    ):
        fill(build_net(plan, dtype=torch.float32), plan)


@pytest.mark.parametrize("name", ["llama", "gpt-neox", "gpt2", "phi3"])
def test_target_linear_means_the_linears_of_the_blocks(saved: Saved, name: str) -> None:
    plan = plan_of(saved(name), adapter="lora")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = get_peft_model(reference(saved(name)), LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    assert set(plan.adapted) == {
        name.removesuffix(".lora_A").removeprefix("base_model.model.")
        for name, module in theirs.named_modules()
        if name.endswith(".lora_A")
    }
    assert (
        plan_of(saved(name), adapter="lora", lora_target_linear=False, lora_target_modules="all-linear").adapted
        == plan.adapted
    )


def test_targets_and_target_linear_add_up(saved: Saved) -> None:
    plan = plan_of(saved("llama"), adapter="lora", lora_target_linear=True, lora_target_modules=("lm_head",))
    assert "lm_head" in plan.adapted
    assert len(plan.adapted) == 15


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"lora_target_modules": ("q_proj", "w1", "upp_proj")},
            "lora_target_modules: no module of LlamaForCausalLM matches, got upp_proj, w1\n"
            f"help: did you mean up_proj? there are: {EXISTING}",
        ),
        (
            {"lora_target_modules": "model.layers.7.*"},
            "lora_target_modules: no module of LlamaForCausalLM matches, got model.layers.7.*\n"
            f"help: there are: {EXISTING}",
        ),
        (
            {"lora_modules_to_save": ("embed_tokenz",)},
            "lora_modules_to_save: no module of LlamaForCausalLM matches, got embed_tokenz\n"
            f"help: did you mean embed_tokens? there are: {EXISTING}",
        ),
        (
            {"lora_target_linear": False},
            "lora_target_modules: the adapter has no targets\nhelp: list modules, or set lora_target_linear: true",
        ),
    ],
)
def test_targets_that_match_nothing_are_one_clear_error(saved: Saved, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError) as caught:
        plan_of(saved("llama"), adapter="lora", **keys)
    assert str(caught.value) == text


def test_only_the_adapter_is_trainable(saved: Saved) -> None:
    net = net_of(saved("llama-tied"), adapter="qlora", load_in_4bit=True, lora_modules_to_save=BOTH)
    trainable = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[-4] for name in trainable if "lora_" not in name} == {"embed_tokens"}
    assert net.lm_head.modules_to_save["default"].weight is net.model.embed_tokens.modules_to_save["default"].weight
    assert all(parameter.dtype == torch.float32 for name, parameter in net.named_parameters() if name in trainable)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt-neox", "stablelm", "gemma2", "mixtral"])
def test_a_bf16_base_trains_float32_adapters_with_and_without_autocast(saved: Saved, name: str, autocast: bool) -> None:
    embedding = "embed_in" if name == "gpt-neox" else "embed_tokens"
    keys = {"adapter": "qlora", "load_in_4bit": True, "lora_modules_to_save": (embedding, "lm_head")}
    net, exact = (net_of(saved(name), dtype=dtype, **keys).train() for dtype in (torch.bfloat16, torch.float32))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = net(**packed([7, 4])).logits
    wanted = exact(**packed([7, 4])).logits
    assert (logits.float() - wanted).norm() / wanted.norm() < 0.05
    logits.float().logsumexp(-1).sum().backward()
    wanted.logsumexp(-1).sum().backward()
    for (key, parameter), other in zip(net.named_parameters(), exact.parameters(), strict=True):
        if parameter.requires_grad:
            assert parameter.dtype == torch.float32
            assert parameter.grad is not None, key
            if other.grad.norm() > 1e-3:
                assert (parameter.grad - other.grad).norm() / other.grad.norm() < 0.2, key


def test_generation_works_with_float32_copies_over_a_bf16_base(saved: Saved) -> None:
    net = net_of(saved("llama"), dtype=torch.bfloat16, adapter="lora", lora_modules_to_save=BOTH).eval()
    assert net.generate(packed([5])["input_ids"], max_new_tokens=3, do_sample=False).shape[1] <= 8


def test_everything_is_trainable_without_an_adapter(saved: Saved) -> None:
    assert all(parameter.requires_grad for parameter in net_of(saved("mixtral")).parameters())


def test_a_step_changes_the_adapter_and_nothing_else(saved: Saved) -> None:
    net = net_of(saved("llama"), adapter="qlora", load_in_4bit=True, dtype=torch.bfloat16).train()
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(**packed([11])).logits[0].float(), packed([11])["input_ids"][0]).backward()
        optimizer.step()
    changed = {name for name, parameter in net.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {name for name, parameter in net.named_parameters() if parameter.requires_grad}
