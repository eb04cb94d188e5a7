"""Migration into the file's text: only lines of old keys change, and the recipe means the same."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

import pytest

from ftkit.recipe import Recipe, check_recipe
from ftkit.recipe.migrate import migrate_text

HEAD = "base_model: org/model  # ours\ndatasets:\n  - path: rows.jsonl\n    type: alpaca\n"
# What stands below HEAD -> what stands there afterwards.
CASES = {
    "a key with a comment": ("load_4bit: true  # for small cards\n", "load_in_4bit: true  # for small cards\n"),
    "accumulation": (
        "batch_size: 8\nmicro_batch_size: 2\n",
        "gradient_accumulation_steps: 4\nmicro_batch_size: 2\n",
    ),
    "special tokens": (
        'tokens:\n  # the base has none\n  pad_token: "<pad>"  # quoted\n  eos_token: </s>\n\nseed: 1\n',
        'special_tokens:\n  # the base has none\n  pad_token: "<pad>"  # quoted\n  eos_token: </s>\n\nseed: 1\n',
    ),
    "prefixes": (
        "fsdp:\n  - full_shard\nfsdp_config:\n  # on the CPU\n  fsdp_offload_params: true\n  fsdp_version: 2\n",
        "fsdp:\n  - full_shard\nfsdp_config:\n  # on the CPU\n  offload_params: true\nfsdp_version: 2\n",
    ),
    "flow style": (
        "bnb_config_kwargs: {bnb_4bit_quant_type: fp4}\nload_in_4bit: true\n",
        "bnb_4bit_quant_type: fp4\nload_in_4bit: true\n",
    ),
    "a section into keys": (
        "wandb:\n  enabled: true\n  project: mine # x\n",
        "use_wandb: true\nwandb_project: mine # x\n",
    ),
    "a share": ("eta_min: 1e-6\nlearning_rate: 1e-5\n", "cosine_min_lr_ratio: 0.1\nlearning_rate: 1e-5\n"),
    "a value": ("optimizer: adamw_hf # old\n", "optimizer: adamw_torch # old\n"),
    "a new name that stands there as a null": ("epochs: 3\nnum_epochs:\n", "num_epochs: 3\n"),
    "a null above": ("num_epochs: null\nseed: 1\nepochs: 3 # e\n", "seed: 1\nnum_epochs: 3 # e\n"),
    "a packed length": (
        "sequence_len: 2048\nmax_packed_sequence_len: 2048\n",
        "sequence_len: 2048\nsample_packing: true\n",
    ),
}


@pytest.mark.parametrize(("old", "new"), CASES.values(), ids=CASES)
def test_only_lines_of_old_keys_change(old: str, new: str) -> None:
    migrated = migrate_text("recipe.yml", HEAD + old)
    assert migrated.text == HEAD + new
    assert migrate_text("recipe.yml", migrated.text).text == migrated.text


def test_sharegpt_becomes_a_chat_template_data_set_with_its_columns_named() -> None:
    old = "datasets:\n- type: sharegpt  # turns\n  conversation: chatml\n  path: rows.jsonl\nbase_model: org/model\n"
    new = (
        "datasets:\n- type: chat_template  # turns\n  field_messages: conversations\n  message_property_mappings:\n"
        "    role: from\n    content: value\n  chat_template: chatml\n  path: rows.jsonl\nbase_model: org/model\n"
    )
    assert migrate_text("recipe.yml", old).text == new


def test_line_ends_of_windows_stay() -> None:
    text = (HEAD + "load_4bit: false\n").replace("\n", "\r\n")
    assert migrate_text("recipe.yml", text.encode()).text == text.replace("load_4bit", "load_in_4bit")


def test_a_key_that_is_an_error_is_left_for_its_owner_to_mend() -> None:
    text = HEAD + "batch_size: 3\nmicro_batch_size: 2\n"
    assert migrate_text("recipe.yml", text).text == text


def test_a_recipe_of_today_and_a_file_that_is_no_yaml_stay_as_they_are() -> None:
    assert migrate_text("recipe.yml", HEAD).text == HEAD
    broken = "base_model: [\n"
    migrated = migrate_text("recipe.yml", broken)
    assert migrated.text == broken
    assert [problem.code for problem in migrated.problems] == ["syntax"]


def test_a_key_whose_anchor_is_used_elsewhere_is_not_taken_away() -> None:
    text = HEAD + "batch_size: &e 4\nmicro_batch_size: 2\nseed: *e\n"
    migrated = migrate_text("recipe.yml", text)
    assert (migrated.text, migrated.changed) == (text, False)
    assert migrated.problems[-1].code == "not-migrated"
    assert "a key that has to go holds an anchor" in migrated.problems[-1].message


def test_every_recipe_of_the_corpus_means_the_same_before_and_after(corpus: Path, tmp_path: Path) -> None:
    changed = 0
    for path in sorted((corpus / "recipes").glob("*/*.y*ml")):
        content = path.read_bytes()
        migrated = migrate_text(str(path), content)
        assert not [problem for problem in migrated.problems if problem.code == "not-migrated"], path
        assert migrate_text(str(path), migrated.text).text == migrated.text, path
        if migrated.text == content.decode("utf-8-sig"):
            continue
        changed += 1
        new = tmp_path / path.name
        new.write_text(migrated.text, encoding="utf8")
        assert same(check_recipe(path)[0], check_recipe(new)[0]), path
        assert comments(migrated.text) >= comments(content.decode("utf-8-sig")) - lost(content, migrated.text), path
    assert changed > 100


def same(before: Recipe | None, after: Recipe | None) -> bool:
    """Whether two recipes are equal, the file's name apart."""
    return before == after if before is None or after is None else replace(before, file="") == replace(after, file="")


def comments(text: str) -> set[str]:
    return {line.strip().replace("\u00a0", " ") for line in text.splitlines() if line.strip().startswith("#")}


def lost(content: bytes, text: str) -> set[str]:
    """Comments that stood behind a key which is gone."""
    gone = difflib.ndiff(content.decode("utf-8-sig").splitlines(), text.splitlines())
    return {line[2:].partition("#")[2] for line in gone if line.startswith("- ")}
