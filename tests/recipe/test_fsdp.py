"""The dialects of FSDP."""

import pytest

from ftkit.recipe.build import modernise
from ftkit.recipe.source import read_source


def read(text):
    source = read_source("r.yml", text)
    modernise(source)
    return source.data, source.problems


OLD = """
fsdp: [full_shard, auto_wrap]
fsdp_config:
  fsdp_offload_params: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_sync_module_states: true
"""
MIDDLE = """
fsdp: full_shard auto_wrap
fsdp_config:
  offload_params: true
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
"""


def test_old_and_middle_dialect_are_one():
    settings = {"offload_params": True, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
    expected = {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": settings}
    assert read(OLD)[0] == read(MIDDLE)[0] == expected


def test_prefixes_and_idle_settings_are_noted_once_each():
    assert [(p.severity, p.code, p.key) for p in read(OLD)[1]] == [
        ("note", "migrated", "fsdp_config.fsdp_offload_params"),
        ("note", "no-effect", "fsdp_config.sync_module_states"),
    ]


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("offload_params: false", "full_shard"),
        ("reshard_after_forward: false", "shard_grad_op"),
        ("reshard_after_forward: true", "full_shard"),
        ("fsdp_sharding_strategy: HYBRID_SHARD", "hybrid_shard"),
        ("fsdp_sharding_strategy: 2", "shard_grad_op"),
    ],
)
def test_the_config_alone_means_fsdp(setting, word):
    data, _ = read(f"fsdp_version: 2\nfsdp_config:\n  {setting}\n")
    assert data["fsdp"] == [word]
    assert data["fsdp_version"] == 2


def test_version_inside_moves_up():
    data, _ = read("fsdp: [full_shard]\nfsdp_config: {fsdp_version: 2, state_dict_type: full_state_dict}\n")
    assert data["fsdp_version"] == 2
    assert data["fsdp_config"] == {"state_dict_type": "FULL_STATE_DICT"}


def test_top_level_settings_move_in():
    data, _ = read("fsdp: [full_shard]\nfsdp_final_state_dict_type: FULL_STATE_DICT\n")
    assert data["fsdp_config"] == {"final_state_dict_type": "FULL_STATE_DICT"}


def test_unknown_settings_and_wrong_values_are_errors_at_their_place():
    _, problems = read("fsdp: [full_shard]\nfsdp_config:\n  fsdp_ofload_params: true\n  activation_checkpointing: 3\n")
    errors = [(p.line, p.message, p.help) for p in problems if p.severity == "error"]
    assert errors == [
        (4, "`activation_checkpointing` must be true or false, got 3", ""),
        (3, "no key is called `ofload_params`", "did you mean `offload_params`?"),
    ]


def test_flags_and_nothing():
    assert read("fsdp: true\n")[0] == {"fsdp": ["full_shard"]}
    assert read("fsdp: false\n")[0] == {"fsdp": []}
    assert read("fsdp:\nfsdp_config:\n") == ({"fsdp": None, "fsdp_config": None}, [])


@pytest.mark.parametrize(("word", "expected"), [("no", []), ("off", []), ("''", []), ("yes", ["full_shard"])])
def test_words_for_on_and_off(word, expected):
    source = read_source("r.yml", f"fsdp: {word}\n")
    modernise(source)
    assert (source.data, source.problems) == ({"fsdp": expected}, [])
