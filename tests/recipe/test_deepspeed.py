"""DeepSpeed's configuration: a file, a name everybody uses, or a mapping."""

import json

import pytest

from ftkit.recipe.build import modernise
from ftkit.recipe.deepspeed import WELL_KNOWN, deepspeed_config
from ftkit.recipe.source import read_source


def read(text, file="r.yml"):
    source = read_source(str(file), text)
    modernise(source)
    return source.data, [(p.severity, p.code, p.message) for p in source.problems]


@pytest.mark.parametrize("name", WELL_KNOWN)
@pytest.mark.parametrize("folder", ["", "nowhere/deepspeed_configs/", "/nowhere/axolotl/deepspeed_configs/"])
def test_well_known_names_work_wherever_the_recipe_lies(name, folder):
    path = f"{folder}{name}.json"
    _, [(severity, code, message)] = read(f"deepspeed: {path}\n")
    assert (severity, code) == ("note", "deepspeed-file")
    assert path in message
    assert deepspeed_config(path, "r.yml")["zero_optimization"]["stage"] == int(name[4])


def test_a_file_is_found_beside_the_recipe(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert read("deepspeed: ds.json\n", tmp_path / "r.yml")[1] == []
    assert deepspeed_config("ds.json", str(tmp_path / "r.yml")) == {"zero_optimization": {"stage": 2}}


def test_numbers_in_a_file_must_agree_with_the_recipe(tmp_path):
    config = {"gradient_accumulation_steps": 8, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    text = "deepspeed: ds.json\ngradient_accumulation_steps: 4\nmicro_batch_size: 1\nmax_grad_norm: 1\n"
    _, [(severity, code, message)] = read(text, tmp_path / "r.yml")
    assert (severity, code) == ("error", "deepspeed-contradicts-recipe")
    assert message == ("ds.json says gradient_accumulation_steps: 8, the recipe gradient_accumulation_steps: 4")


def test_the_precision_in_a_file_must_agree_with_the_recipe(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "fp16": {"enabled": "auto"}}))
    _, [(severity, code, message)] = read("deepspeed: ds.json\nbf16: false\nfp16: true\n", tmp_path / "r.yml")
    assert (severity, code) == ("error", "deepspeed-contradicts-recipe")
    assert message == "ds.json says bf16.enabled: true, the recipe bf16: false"
    for agrees in ("bf16: auto\n", "bf16: true\n", ""):
        assert read(f"deepspeed: ds.json\n{agrees}", tmp_path / "r.yml")[1] == []


def test_keys_in_a_file_that_are_not_served_are_errors(tmp_path):
    config = {"zero_optimization": {"stage": 2, "zero_quantized_gradients": True}, "optimizer": {"type": "AdamW"}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert read("deepspeed: ds.json\n", tmp_path / "r.yml")[1] == [
        ("error", "deepspeed-unserved", "ds.json says optimizer: a mapping, which ftkit does not serve"),
        (
            "error",
            "deepspeed-unserved",
            "ds.json says zero_optimization.zero_quantized_gradients: true, which ftkit does not serve",
        ),
    ]


def test_a_file_that_is_not_json_is_an_error(tmp_path):
    (tmp_path / "ds.json").write_text("{")
    _, [(severity, _, message)] = read("deepspeed: ds.json\n", tmp_path / "r.yml")
    assert severity == "error"
    assert message.startswith("ds.json is not JSON")


def test_a_file_that_is_not_here_is_a_warning_and_later_an_error():
    _, [(severity, _, message)] = read("deepspeed: mine/ds_7.json\n")
    assert (severity, message) == ("warning", "there is no file mine/ds_7.json here or beside the recipe")
    with pytest.raises(FileNotFoundError):
        deepspeed_config("mine/ds_7.json", "r.yml")


def test_a_mapping_stays():
    data, problems = read("deepspeed: {zero_optimization: {stage: 3}}\n")
    assert (data, problems) == ({"deepspeed": {"zero_optimization": {"stage": 3}}}, [])
    assert deepspeed_config(data["deepspeed"], "r.yml") == {"zero_optimization": {"stage": 3}}


def test_accelerate_s_words_become_deepspeed_s():
    data, _ = read("deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: none}\n")
    expected = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
    assert data == {"deepspeed": expected}


def test_a_name_that_no_file_can_have_names_no_file():
    _, [(severity, code, message)] = read(f"deepspeed: {'a' * 300}\n")
    assert (severity, code) == ("warning", "deepspeed-file")
    assert message.startswith("there is no file aaa")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "ds.json").write_text("[" * 200_000)
    _, [(severity, code, message)] = read("deepspeed: ds.json\n", tmp_path / "r.yml")
    assert (severity, code, message) == ("error", "deepspeed-file", "ds.json is not JSON (it is nested too deeply)")

    def closed(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_text", closed)
    _, [(severity, code, message)] = read("deepspeed: ds.json\n", tmp_path / "r.yml")
    assert message == "ds.json is not JSON (it cannot be read: Permission denied)"


def test_words_of_accelerate_s_that_say_nothing_are_named():
    words = "zero_stage: 3, zero3_init_flag: true, foo: 1, offload_param_device: nvme, offload_param_nvme_path: /n"
    data, problems = read(f"deepspeed: {{{words}}}\n")
    offload = {"device": "nvme", "nvme_path": "/n"}
    assert data == {"deepspeed": {"zero_optimization": {"stage": 3, "offload_param": offload}}}
    assert [(severity, code) for severity, code, _ in problems] == [
        ("note", "no-effect"),
        ("error", "unknown-key"),
        ("note", "migrated"),
    ]
    assert problems[1][2] == "no key is called `foo`"


@pytest.mark.parametrize("word", ["no", "off", "''", "false", "No"])
def test_words_for_off_mean_off(word):
    assert read(f"deepspeed: {word}\n") == ({"deepspeed": None}, [])
