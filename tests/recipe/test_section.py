"""Sections as values in Python: frozen, hashable, checked, copied."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from ftkit.recipe.section.data import DataSection, DatasetSection
from ftkit.recipe.section.frozen import FrozenMap
from ftkit.recipe.section.model import ModelSection
from ftkit.recipe.section.training import TrainingSection


def test_values_are_checked_and_frozen() -> None:
    data = DataSection.model_validate({"datasets": [{"path": "x", "roles": {"user": ["human"]}}], "sequence_len": "64"})
    assert data.datasets == (DatasetSection(path="x", roles=FrozenMap({"user": ["human"]})),)
    assert data.sequence_len == 64
    assert data.model_fields_set == {"datasets", "sequence_len"}
    with pytest.raises(AttributeError, match=r"a recipe is frozen: DataSection.sequence_len cannot be changed"):
        data.sequence_len = 1  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del data.sequence_len


def test_what_does_not_fit_is_an_error_that_names_everything() -> None:
    with pytest.raises(ValueError, match="must be a whole number, got many") as caught:
        TrainingSection.model_validate({"micro_batch_size": "many", "sed": 1})
    assert "no key is called `sed`" in str(caught.value)
    with pytest.raises(ValueError, match="the key `path` is missing"):
        DatasetSection.model_validate({"type": "alpaca"})


def test_none_is_absent_or_a_value_where_it_is_one() -> None:
    assert TrainingSection.model_validate({"micro_batch_size": None}).micro_batch_size == 1
    assert TrainingSection(bf16=None).bf16 is None


def test_equal_by_values_hashable_and_copied_whole() -> None:
    section = TrainingSection(seed=7)
    same = TrainingSection(seed=7, micro_batch_size=1)
    assert section == same
    assert hash(section) == hash(same)
    assert section != TrainingSection(seed=8)
    changed = section.model_copy(update={"seed": 8, "bf16": None})
    assert (changed.seed, changed.model_fields_set, section.seed) == (8, {"seed", "bf16"}, 7)
    for again in (copy.deepcopy(section), pickle.loads(pickle.dumps(section))):
        assert again == section
        assert again.model_fields_set == {"seed"}


def test_dumped_by_field_or_by_key() -> None:
    model = ModelSection(base_model="m", model_config={"rope_scaling": {"factor": 2}})  # type: ignore[call-arg]
    assert model.model_dump()["config_overrides"] == {"rope_scaling": {"factor": 2}}
    assert model.model_dump(by_alias=True)["model_config"] == {"rope_scaling": {"factor": 2}}
    data = DataSection(datasets=(DatasetSection(path="x"),))
    assert json.loads(data.model_dump_json())["datasets"][0]["path"] == "x"
    assert repr(TrainingSection(seed=7)).startswith("TrainingSection(micro_batch_size=1, ")
