from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from ftkit.errors import CheckpointError
from ftkit.model.build import build_net
from ftkit.model.load import load_net
from ftkit.model.plan import ModelPlan, plan_model
from ftkit.parallel.backend import World
from ftkit.parallel.single import SingleBackend
from ftkit.recipe.section.adapter import AdapterSection
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.quantization import QuantizationSection
from ftkit.save.export import export
from ftkit.save.stream import TensorShape, write_stream
from ftkit.save.whole_model import write_model
from tiny import tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21

CPU = World(0, 1, 0, 1, torch.device("cpu"))
IDS = torch.arange(5, 25)[None]


def loaded(
    folder: Path, *, tokenizer_length: int | None = None, **adapter: Any
) -> tuple[PreTrainedModel, ModelPlan, SingleBackend]:
    """ftkit's net of `folder`, its trainable parameters moved as if trained, in a backend."""
    sections = ModelSection(base_model=str(folder)), QuantizationSection(), AdapterSection(**adapter)
    plan = plan_model(*sections, tokenizer_length=tokenizer_length)
    net, backend = build_net(plan, dtype=torch.float32), SingleBackend(CPU)
    fill = load_net(net, plan, backend.place_block, device=CPU.device, dtype=torch.float32)
    backend.finish(net, fill, lambda net: [{"params": [p for p in net.parameters() if p.requires_grad]}], sgd, 0.0)
    torch.manual_seed(1)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data += 0.02 * torch.randn_like(parameter)
    return net.eval(), plan, backend


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1)


@torch.no_grad()
def logits(net: nn.Module, ids: Tensor = IDS) -> Tensor:
    values: Tensor = net(input_ids=ids, use_cache=False).logits
    return values


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "mixtral"])
@pytest.mark.parametrize("shard_bytes", [10**9, 50_000])
def test_a_whole_model_loads_in_transformers(tmp_path: Path, architecture: str, shard_bytes: int) -> None:
    base = tiny_model(tmp_path / "base", architecture)
    net, _, backend = loaded(base)
    write_model(backend, net, tmp_path / "out", shard_bytes=shard_bytes)
    again, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(logits(again), logits(net), rtol=1e-5, atol=1e-5)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == (1 if shard_bytes > 10**6 else len(files(tmp_path)))
    # the same names as transformers would give them
    assert names_in(tmp_path / "out") == names_in(base)
    assert "ftkit" not in (tmp_path / "out" / "config.json").read_text()


def files(folder: Path) -> set[str]:
    index = json.loads((folder / "out" / "model.safetensors.index.json").read_text())
    return set(index["weight_map"].values())


def names_in(folder: Path) -> dict[str, list[int]]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return found


def test_a_tied_head_is_written_once(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", tie_word_embeddings=True)
    net, _, backend = loaded(base)
    write_model(backend, net, tmp_path / "out")
    assert "lm_head.weight" not in names_in(tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logits(again), logits(net), rtol=1e-5, atol=1e-5)


def test_a_whole_model_can_be_written_in_another_dtype(tmp_path: Path) -> None:
    net, _, backend = loaded(tiny_model(tmp_path / "base"))
    write_model(backend, net, tmp_path / "out", torch.bfloat16)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert again.dtype == torch.bfloat16
    assert torch.equal(again.lm_head.weight, net.lm_head.weight.bfloat16())


@pytest.mark.parametrize("adapter", [{}, {"lora_modules_to_save": ("embed_tokens", "lm_head")}], ids=str)
def test_an_adapter_loads_in_peft(tmp_path: Path, adapter: dict[str, Any]) -> None:
    base = tiny_model(tmp_path / "base")
    net, plan, backend = loaded(base, adapter="lora", lora_target_linear=True, lora_r=4, **adapter)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    export(backend, net, tmp_path / "out", tokenizer=tokenizer, adapter=plan.adapter)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = logits(plain)
    again = PeftModel.from_pretrained(plain, tmp_path / "out").eval()
    torch.testing.assert_close(logits(again), logits(net), rtol=1e-5, atol=1e-5)
    assert (logits(again) - before).abs().max() > 0.01
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == tokenizer.chat_template


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("adapter", [{}, {"lora_modules_to_save": ("embed_tokens", "lm_head")}], ids=str)
def test_an_adapter_brings_the_rows_of_new_tokens(tmp_path: Path, adapter: dict[str, Any], tied: bool) -> None:
    base = tiny_model(tmp_path / "base", tie_word_embeddings=tied)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(["<new>", "<newer>"])
    adapter = {"adapter": "lora", "lora_target_linear": True, "lora_r": 4, **adapter}
    net, plan, backend = loaded(base, tokenizer_length=len(tokenizer), **adapter)
    grown = [parameter.name for parameter in plan.parameters() if parameter.stored_rows is not None]
    assert len(grown) == 2 - tied
    export(backend, net, tmp_path / "out", tokenizer=tokenizer, adapter=plan.adapter, grown=grown)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain.resize_token_embeddings(len(AutoTokenizer.from_pretrained(tmp_path / "out")))
    again = PeftModel.from_pretrained(plain, tmp_path / "out").eval()
    ids = torch.arange(len(tokenizer) - 6, len(tokenizer))[None]
    torch.testing.assert_close(logits(again, ids), logits(net, ids), rtol=1e-5, atol=1e-5)


def test_a_model_stops_where_its_tokenizer_says(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base")
    net, _, backend = loaded(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    export(backend, net, tmp_path / "out", tokenizer=tokenizer, adapter=None)
    config = GenerationConfig.from_pretrained(tmp_path / "out")
    assert tokenizer.convert_ids_to_tokens(config.eos_token_id) in ("<|im_end|>", ["<|im_end|>"])


def test_a_stream_refuses_what_was_not_announced(tmp_path: Path) -> None:
    shapes = {"a": TensorShape((2,), torch.float32), "b": TensorShape((), torch.int64)}
    with pytest.raises(CheckpointError, match=r"x: not the tensor that was announced, got a \(3,\) torch.float32"):
        write_stream(tmp_path / "x", shapes, [("a", torch.zeros(3))])
    with pytest.raises(CheckpointError, match="b: a tensor did not come"):
        write_stream(tmp_path / "x", shapes, [("a", torch.zeros(2))])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64], ids=str)
def test_a_stream_reads_back(tmp_path: Path, dtype: torch.dtype) -> None:
    values = {"scalar": torch.ones((), dtype=dtype), "empty": torch.zeros(0, 3, dtype=dtype)}
    values["rows"] = torch.arange(6).view(2, 3).T.to(dtype)  # not contiguous
    write_stream(tmp_path / "x", {n: TensorShape(tuple(t.shape), t.dtype) for n, t in values.items()}, values.items())
    with safe_open(tmp_path / "x", "pt") as file:
        assert all(torch.equal(file.get_tensor(name), value) for name, value in values.items())


OWN = """
from transformers import LlamaConfig, LlamaForCausalLM
from .parts import SCALE
class OwnConfig(LlamaConfig):
    model_type = "own-llama"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits * SCALE
        return outputs
"""


def test_the_code_of_a_models_own_class_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    base = tiny_model(tmp_path / "base")
    values = json.loads((base / "config.json").read_text()) | {
        "model_type": "own-llama",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    (base / "config.json").write_text(json.dumps(values))
    (base / "own.py").write_text(OWN)
    (base / "parts.py").write_text("SCALE = 3.0\n")
    sections = ModelSection(base_model=str(base), trust_remote_code=True), QuantizationSection(), AdapterSection()
    plan = plan_model(*sections)
    net, backend = build_net(plan, dtype=torch.float32), SingleBackend(CPU)
    fill = load_net(net, plan, backend.place_block, device=CPU.device, dtype=torch.float32)
    backend.finish(net, fill, lambda net: [{"params": list(net.parameters())}], sgd, 0.0)
    export(backend, net.eval(), tmp_path / "out", tokenizer=AutoTokenizer.from_pretrained(base), adapter=None)
    assert (tmp_path / "out" / "parts.py").read_text() == "SCALE = 3.0\n"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True, dtype=torch.float32)
    assert type(again).__name__ == "OwnForCausalLM"
    torch.testing.assert_close(logits(again), logits(net), rtol=1e-5, atol=1e-5)
