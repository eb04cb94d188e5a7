"""All real recipes: no crash, nothing dropped, known defects found, verdicts as recorded."""

import importlib.util
from pathlib import Path

import pytest
import yaml

from ftkit.recipe import check_recipe
from ftkit.recipe.build import build_sections, modernise
from ftkit.recipe.judge import KNOWN
from ftkit.recipe.keys import HOLDERS
from ftkit.recipe.source import Source, read_source

# Keys by which a recipe is not supervised fine-tuning of a text model, whatever else it asks for.
OTHER_TRAINING = (
    "rl",
    "trl",
    "ebft",
    "reward_model",
    "process_reward_model",
    "processor_type",
    "diffusion",
    "pretraining_dataset",
)
# Misspelt keys in the table of frequencies, with what they were meant to be.
MISSPELT = {
    "warmup_ration": "warmup_ratio",
    "eval_per_epoch": "evals_per_epoch",
    "context_parapllel_size": "context_parallel_size",
}
NOT_KEYS = {"device_map."}  # `device_map: {"": 0}`


def load_verdicts():
    path = Path(__file__).with_name("verdicts.py")
    spec = importlib.util.spec_from_file_location("verdicts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recipes(corpus):
    paths = sorted((corpus / "recipes").glob("*/*.y*ml"))
    assert len(paths) >= 300
    return paths


@pytest.fixture(scope="module")
def checked(recipes):
    return {path: check_recipe(path) for path in recipes}


def said(problems):
    return {key for problem in problems for key in (problem.key.split(".")[0], *words(problem.message))}


def words(message):
    return message.split("`")[1::2]


def test_every_top_level_key_is_honoured_or_spoken_of(recipes, checked):
    lost = []
    for path in recipes:
        source = read_source(str(path), path.read_bytes())
        keys = [key for key, value in source.data.items() if value is not None]
        modernise(source)
        known = set(source.data) & set(HOLDERS) | said(checked[path][1])
        lost += [(path.name, key) for key in keys if key not in known]
    assert lost == []


def test_no_value_of_a_section_is_lost(recipes, checked):
    lost = []
    for path in recipes:
        recipe, _ = checked[path]
        if recipe is None:
            continue
        source = read_source(str(path), path.read_bytes())
        modernise(source)
        sections = recipe.sections()
        for key, value in source.data.items():
            if value is not None and HOLDERS[key][1] not in sections[HOLDERS[key][0]].model_fields_set:
                lost.append((path.name, key))
    assert lost == []


def test_the_verdicts_are_as_recorded(recipes):
    verdicts = load_verdicts()
    recorded = verdicts.SNAPSHOT.read_text(encoding="utf-8").splitlines()
    now = [verdicts.HEADER, *map(verdicts.verdict, recipes)]
    changed = "\n".join(sorted(set(now) ^ set(recorded)))
    assert now == recorded, f"run tests/recipe/verdicts.py if these are wanted:\n{changed}"
    assert not any("?" in line for line in now), "add the reason to WHY in verdicts.py"


def test_nine_in_ten_fine_tuning_recipes_pass(checked):
    passed = []
    for path, (recipe, _) in checked.items():
        try:
            data = yaml.safe_load(path.read_bytes())
        except yaml.YAMLError:
            data = {"base_model": "?"}
        if "base_model" in data and not any(data.get(key) for key in OTHER_TRAINING):
            passed.append(recipe is not None)
    assert len(passed) > 250
    assert sum(passed) / len(passed) >= 0.9


@pytest.mark.parametrize(
    ("name", "code", "key"),
    [
        ("021_", "syntax", ""),
        ("172_", "type", "use_wandb"),
        ("172_", "refused", "global_batch_size"),
        ("122_", "unknown-key", "warmup_ration"),
        ("163_", "unknown-key", "eval_per_epoch"),
        ("078_", "migrated", "epochs"),
        ("147_", "placeholder", "base_model"),
        ("147_", "placeholder", "learning_rate"),
    ],
)
def test_known_defects_are_found(checked, name, code, key):
    [problems] = [found for path, (_, found) in checked.items() if path.name.startswith(name)]
    assert (code, key) in {(problem.code, problem.key) for problem in problems}


def frequencies(corpus):
    rows = (corpus / "recipes" / "key_frequencies.tsv").read_text(encoding="utf-8").splitlines()
    keys = [row.split("\t")[0] for row in rows[1:] if row.count("\t") == 4]
    assert len(keys) > 590
    return [key for key in keys if key not in NOT_KEYS]


def test_every_key_of_the_table_is_known_or_a_named_misspelling(corpus):
    top = {key.split(".")[0].split("[")[0] for key in frequencies(corpus)}
    assert top - set(KNOWN) == set(MISSPELT)


def test_every_key_inside_another_is_known(corpus):
    """Each nested key of the table, alone in its place: only its value may be wrong."""
    unknown = []
    for key in frequencies(corpus):
        if key.count(".") != 1 or key.split(".")[0].removesuffix("[]") not in HOLDERS:
            continue
        top, inner = key.split(".")
        value = [{"path": "x", "type": "alpaca", inner: "x"}] if top.endswith("[]") else {inner: "x"}
        source = Source("r.yml", "", {top.removesuffix("[]"): value})
        build_sections(source)
        unknown += [problem.message for problem in source.problems if problem.code == "unknown-key"]
    assert unknown == []


def test_misspelt_keys_are_told_what_they_were_meant_to_be(tmp_path):
    for key, meant in MISSPELT.items():
        path = tmp_path / "r.yml"
        path.write_text(f"base_model: x\ndatasets: [{{path: x, type: alpaca}}]\n{key}: 1\n")
        [problem] = [problem for problem in check_recipe(path)[1] if problem.code == "unknown-key"]
        assert problem.help == f"did you mean `{meant}`?"
