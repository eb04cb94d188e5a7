"""Old keys mean today's: what becomes of each, how loudly, and that it is done once."""

import pytest

from ftkit.recipe.build import build_sections, modernise
from ftkit.recipe.migrations import RESTRUCTURED
from ftkit.recipe.renames import RENAMED, TEMPLATES_OF_MODELS, TEMPLATES_RENAMED
from ftkit.recipe.source import Source, read_source


def migrated(text):
    source = read_source("r.yml", text)
    modernise(source)
    return source.data, source.problems


def severities(text):
    return [(problem.severity, problem.code, problem.line) for problem in migrated(text)[1]]


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_renamed_keys_carry_their_value(old, new):
    value: object = "FULL_STATE_DICT"
    value = {"x": 1} if new == "model_config" else {"zero_optimization": {}} if new == "deepspeed" else value
    data, problems = migrated_mapping({old: value})
    for step in new.split("."):
        data = data.get(step) if isinstance(data, dict) else data
    assert data == value
    assert old in {problem.key for problem in problems}


def migrated_mapping(mapping):
    source = Source("r.yml", "", mapping)
    modernise(source)
    return source.data, source.problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch_size: 8\nmicro_batch_size: 2", {"micro_batch_size": 2, "gradient_accumulation_steps": 4}),
        ("batch_size: 8", {"micro_batch_size": 8}),
        (
            "batch_size: 8\nmicro_batch_size: 2\ngradient_accumulation_steps: 3",
            {"micro_batch_size": 2, "gradient_accumulation_steps": 3},
        ),
        ("base_model: a\nbase_model_config: a", {"base_model": "a"}),
        ("base_model: a\nbase_model_config: b", {"base_model": "a", "base_model_config": "b"}),
        ("load_4bit: true\nload_in_8bit: true", {"load_in_8bit": False, "load_in_4bit": True}),
        ("load_4bit: false", {"load_in_4bit": False}),
        ("float16: true\nfp16: false", {"fp16": True}),
        ("float16: true\nfp16: auto", {"fp16": True}),
        ("float16: true\nfp16: yes", {"fp16": "yes"}),
        ("bfloat16: false", {"bf16": False}),
        ("warmup_steps: 0.1", {"warmup_ratio": 0.1}),
        ("bnb_config_kwargs: {bnb_4bit_quant_type: fp4}", {"bnb_4bit_quant_type": "fp4"}),
        (
            "bnb_config_kwargs: {llm_int8_has_fp16_weight: false, bnb_4bit_use_double_quant: true}",
            {"bnb_4bit_use_double_quant": True},
        ),
        ("xformers_attention: true", {"flash_attention": True}),
        ("xformers_attention: true\nsdp_attention: true", {"sdp_attention": True}),
        ("xformers_attention: false", {"xformers_attention": False}),
        ("attn_implementation: xformers", {"attn_implementation": "flash_attention_2"}),
        ("max_packed_sequence_len: 2048\nsequence_len: 2048", {"sequence_len": 2048, "sample_packing": True}),
        (
            "max_packed_sequence_len: 1024\nsequence_len: 2048\ngroup_by_length: true",
            {"sequence_len": 2048, "group_by_length": False, "sample_packing": True},
        ),
        ("tokens: {pad_token: x, bos_token: y}", {"special_tokens": {"pad_token": "x", "bos_token": "y"}}),
        ("learning_rate: 2e-5\neta_min: '2e-6'", {"learning_rate": 2e-5, "cosine_min_lr_ratio": 0.1}),
        ("torch_dtype: bfloat16", {"bf16": True}),
        ("report_to: none", {"use_wandb": False}),
        ("report_to: [tensorboard, wandb]", {"use_tensorboard": True, "use_wandb": True}),
        ("wandb: {enabled: true, project: p}", {"use_wandb": True, "wandb_project": "p"}),
        ("optimizer: adamw_hf", {"optimizer": "adamw_torch"}),
        ("optimizer: adamw_torch_8bit", {"optimizer": "adamw_bnb_8bit"}),
        ("noisy_embedding_alpha: 0", {}),
        ("noisy_embedding_alpha: 5", {"neftune_noise_alpha": 5}),
        ("chat_template: exaone4", {"chat_template": "tokenizer_default"}),
        ("chat_template: inst", {"chat_template": "mistral"}),
        ("gptq: false\nis_llama_derived_model: true", {}),
    ],
)
def test_restructured_keys(text, expected):
    data, problems = migrated(text)
    assert data == expected
    assert not [problem for problem in problems if problem.severity == "error"]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("train_on_split: test", {"split": "test"}),
        ("field_human: user\n    field_model: bot", {"roles": {"user": ["user"], "assistant": ["bot"]}}),
        ("type: alpaca\n    prompt_style: chat", {"type": "alpaca:chat"}),
        ("trust_remote_code: true", {}),
    ],
)
def test_keys_of_data_sets(entry, expected):
    data, _ = migrated(f"datasets:\n  - path: x\n    {entry}\n")
    assert data["datasets"] == [{"path": "x", **expected}]


def test_what_changes_a_run_is_a_warning_and_a_new_name_a_note():
    assert severities("evaluation_strategy: steps") == [("note", "migrated", 1)]
    assert severities("epochs: 3") == [("warning", "migrated", 1)]
    assert severities("optimizer: adamw_hf") == [("note", "migrated", 1)]
    assert severities("optimizer: adamw_torch_4bit") == [("warning", "migrated", 1)]


def test_two_names_that_agree_are_one_and_that_differ_are_an_error():
    assert migrated("epochs: 3\nnum_epochs: 3")[0] == {"num_epochs": 3}
    assert ("error", "migration-clash", 2) in severities("num_epochs: 4\nepochs: 3")


def test_batches_that_no_accumulation_gives_are_an_error():
    assert severities("batch_size: 6\nmicro_batch_size: 4") == [("error", "batch-size", 1)]


def test_what_cannot_be_read_as_its_successor_is_an_error():
    for key in RESTRUCTURED.keys() - {"base_model_config", "report_to", "load_4bit", "float16", "bfloat16"}:
        _, problems = migrated_mapping({key: "?"} if key != "max_packed_sequence_len" else {"sequence_len": 1, key: 1})
        assert key in {problem.key for problem in problems}


def test_problems_with_a_migrated_value_point_to_the_file():
    source = read_source("r.yml", "base_model: m\n\nadam_eps: tiny\n")
    build_sections(source)
    [problem] = [problem for problem in source.problems if problem.severity == "error"]
    assert (problem.line, problem.column, problem.key) == (3, 11, "adam_epsilon")


def test_today_s_names_stay():
    assert not set(TEMPLATES_RENAMED.values()) & TEMPLATES_OF_MODELS
    assert not set(RENAMED) & {new.split(".")[0] for new in RENAMED.values()}


def test_migrating_twice_changes_nothing(corpus):
    for path in sorted((corpus / "recipes").glob("*/*.y*ml")):
        once = read_source(str(path), path.read_bytes())
        modernise(once)
        again = Source(str(path), "", once.data)
        before = repr(once.data)
        modernise(again)
        assert again.edits == []
        assert repr(again.data) == before


@pytest.mark.parametrize(
    ("text", "data", "said"),
    [
        ("report_to: mlflow", {}, ("warning", "`report_to: mlflow` has no effect without `mlflow_tracking_uri`")),
        ("report_to: [comet_ml]", {"use_comet": True}, ("note", "`report_to: comet_ml` is now `use_comet: true`")),
        (
            "report_to: mlflow\nmlflow_tracking_uri: here",
            {"mlflow_tracking_uri": "here"},
            ("note", "`report_to: mlflow` is not needed: `mlflow_tracking_uri` says it"),
        ),
        (
            "report_to: neptune",
            {},
            ("warning", "`report_to: neptune` has no effect: no tracker of this name is supported"),
        ),
    ],
)
def test_no_tracker_vanishes(text, data, said):
    got, [problem] = migrated(text)
    assert got == data
    assert (problem.severity, problem.message) == said


def test_each_tracker_of_a_list_is_named():
    data, problems = migrated("report_to: [wandb, mlflow]")
    assert data == {"use_wandb": True}
    assert [problem.severity for problem in problems] == ["note", "warning"]
    assert severities("report_to: ${TRACKER}") == [("error", "placeholder", 1)]


@pytest.mark.parametrize("word", ["yes", "on", "True", "'true'"])
def test_words_for_true_act_as_true(word):
    assert migrated(f"xformers_attention: {word}\nsdp_attention: no")[0]["flash_attention"] is True
    assert migrated(f"load_4bit: {word}\nload_in_8bit: {word}")[0]["load_in_8bit"] is False
    assert migrated(f"bfloat16: {word}")[0] == {"bf16": True}
    data, _ = migrated(f"max_packed_sequence_len: 8\nsequence_len: 8\ngroup_by_length: {word}")
    assert data["group_by_length"] is False


@pytest.mark.parametrize(
    "text",
    [
        "bfloat16: true\nbf16: false",
        "torch_dtype: bfloat16\nbf16: no",
        "report_to: none\nuse_wandb: true",
        "report_to: tensorboard\nuse_tensorboard: false",
        "learning_rate: 1e-4\neta_min: 1e-5\ncosine_min_lr_ratio: 0.2",
    ],
)
def test_an_old_way_and_a_new_key_that_differ_are_an_error(text):
    before = read_source("r.yml", text).data
    data, problems = migrated(text)
    assert [(problem.severity, problem.code) for problem in problems] == [("error", "migration-clash")]
    assert data == {key: before[key] for key in data}


def test_an_old_way_and_a_new_key_that_agree_are_one():
    assert migrated("learning_rate: 1e-4\neta_min: 1e-5\ncosine_min_lr_ratio: 0.1")[0]["cosine_min_lr_ratio"] == 0.1
    assert migrated("bfloat16: true\nbf16: true")[0] == {"bf16": True}
    assert migrated("torch_dtype: bfloat16\nbf16: auto")[0] == {"bf16": True}


def test_a_small_eta_min_keeps_its_digits():
    assert migrated("learning_rate: 3e-4\neta_min: 1e-12")[0]["cosine_min_lr_ratio"] == 3.33333e-9


@pytest.mark.parametrize(("total", "micro"), [("8", "'2'"), ("'8'", "2"), ("8.0", "2"), ("'8'", "2.0")])
def test_batches_may_be_quoted(total, micro):
    data, problems = migrated(f"batch_size: {total}\nmicro_batch_size: {micro}")
    assert data["gradient_accumulation_steps"] == 4
    assert [problem.severity for problem in problems] == ["note"]
    assert ("error", "type", 1) in severities("batch_size: 8.5\nmicro_batch_size: 2")
