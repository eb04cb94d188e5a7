from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from model_zoo import Saved, plan_of

from ftkit.errors import ModelError


def test_overrides_reach_the_configuration(saved: Saved) -> None:
    plan = plan_of(saved("mixtral"), model_config={"output_router_logits": True, "rms_norm_eps": 1e-4})
    assert plan.config.output_router_logits is True
    assert plan.config.rms_norm_eps == 1e-4


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ({"rope_theta": 500000}, {"rope_type": "default", "rope_theta": 500000.0}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 5e5},
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
        ),
    ],
)
def test_rotary_overrides_by_old_and_new_names(saved: Saved, overrides: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert plan_of(saved("llama"), model_config=overrides).config.rope_parameters == wanted


def test_unknown_overrides_are_refused_together(saved: Saved) -> None:
    with pytest.raises(
        ModelError,
        match=r"got max_position_embedding \(did you mean max_position_embeddings\?\), output_router_logits",
    ):
        plan_of(saved("llama"), model_config={"max_position_embedding": 4, "output_router_logits": True})


@pytest.mark.parametrize("name", ["AutoModelForCausalLM", "LlamaForCausalLM", "llama", None])
def test_model_type_of_the_architecture_is_accepted(saved: Saved, name: str | None) -> None:
    assert plan_of(saved("llama"), model_type=name).net_class == "LlamaForCausalLM"


@pytest.mark.parametrize("name", ["MistralForCausalLM", "Qwen2ForCausalLM", "AutoModel"])
def test_model_type_of_another_architecture_is_refused(saved: Saved, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        plan_of(saved("llama"), model_type=name)
    assert str(caught.value) == (
        f"{saved('llama')}: the recipe says model_type {name}, but the model is of architecture LlamaForCausalLM\n"
        "help: write model_type: LlamaForCausalLM, or AutoModelForCausalLM, or leave it out"
    )


def test_missing_folder_and_folder_without_a_model_are_clear(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        plan_of(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"the folder has no config\.json"):
        plan_of(tmp_path)


def test_a_hub_id_that_is_not_cached_offline_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="base_model: someone/absent-model: no usable configuration"):
        plan_of("someone/absent-model")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"model_type": "vit"}, "transformers has no causal language model for model_type, got vit"),
        ({"model_type": "no-such-thing"}, "no usable configuration"),
        (
            {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}},
            "already quantized, got quant_method gptq",
        ),
    ],
)
def test_configurations_that_cannot_be_trained_are_refused(tmp_path: Path, values: dict[str, Any], text: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=text):
        plan_of(tmp_path)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            {"num_hidden_layers": "two"},
            r"got num_hidden_layers: two \(TypeError: Field 'num_hidden_layers' expected int",
        ),
        (
            {"hidden_size": 1.5, "rms_norm_eps": "x"},
            r"got hidden_size: 1.5 \(.*\); rms_norm_eps: x \(.* expected float, got str",
        ),
        ({"rope_scaling": {"type": "bogus", "factor": 2}}, "model_config: rope_scaling: .* of this type, got bogus\n"),
        ({"rope_scaling": {"type": "linear"}}, "model_config: rope_scaling: .*incomplete: .*'factor'"),
        ({"rope_scaling": {"type": "linear", "factor": "x"}}, "must be numbers, got factor: x"),
        ({"rope_scaling": "yarn"}, "rotary settings of the wrong kind, got rope_scaling: yarn"),
        ({"rope_theta": "a"}, "rotary settings of the wrong kind, got rope_theta: a"),
        ({"hidden_act": "zork"}, r"llama cannot be built from .* \(KeyError: 'zork'\), got hidden_act zork"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
    ],
    ids=str,
)
def test_overrides_of_the_wrong_kind_are_named(saved: Saved, overrides: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        plan_of(saved("llama"), model_config=overrides)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"config\.json: config\.json is not JSON: Expecting property name"),
        ("[]", r"config\.json must hold a mapping, got list"),
        ("", r"config\.json is not JSON"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer\nhelp: run `git lfs pull`"),
        (
            '{"model_type": "llama", "num_hidden_layers": "two"}',
            "wrong kind: .*'num_hidden_layers' expected int, got str",
        ),
        ('{"model_type": "llama", "rope_scaling": {"type": "bogus", "factor": 2}}', r"in config\.json: .* got bogus"),
        ('{"model_type": ["llama"]}', "wrong kind"),
        ('{"model_type": "llama", "hidden_act": "zork"}', "got hidden_act zork"),
    ],
)
def test_a_broken_config_json_is_clear(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=said):
        plan_of(tmp_path)


def test_a_silent_hub_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"offline: http://127\.0\.0\.1:9 does not answer.*\nhelp: give the folder of"):
        plan_of("someone/absent-model")
    assert time.monotonic() - start < 5


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own-llama"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_own_code_needs_trust_and_then_runs(saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = tmp_path / "model"
    folder.mkdir()
    values = json.loads((saved("llama") / "config.json").read_text())
    values |= {
        "model_type": "own-llama",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "own.py").write_text(OWN_CODE)
    with pytest.raises(ModelError, match="own code needs trust_remote_code: true"):
        plan_of(folder)
    assert plan_of(folder, trust_remote_code=True, model_type="OwnForCausalLM").net_class == "OwnForCausalLM"
