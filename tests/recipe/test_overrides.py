"""key=value words of the command line."""

import pytest

from ftkit.recipe import check_recipe

TEXT = "base_model: m\nlearning_rate: 1e-5\ndatasets:\n  - path: a.jsonl\n    type: alpaca\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "r.yml"
    path.write_text(TEXT)
    return path


def test_values_are_yaml(file):
    words = (
        "learning_rate=2e-4",
        "datasets.0.path=b.jsonl",
        "lora_target_modules=[q, v]",
        "wandb_name=off",
        "wandb_run_id=007",
    )
    recipe, _ = check_recipe(file, words)
    assert recipe.optimization.learning_rate == 2e-4
    assert recipe.data.datasets[0].path == "b.jsonl"
    assert recipe.adapter.lora_target_modules == ("q", "v")
    assert recipe.tracking.wandb_name == "off"
    assert recipe.tracking.wandb_run_id == "007"


def test_nothing_after_the_sign_means_absent(file):
    recipe, _ = check_recipe(file, ("learning_rate=",))
    assert "learning_rate" not in recipe.optimization.model_fields_set


def test_places_are_made(file):
    recipe, _ = check_recipe(file, ("datasets.1.path=c", "datasets.1.type=alpaca", "special_tokens.pad_token=<pad>"))
    assert [dataset.path for dataset in recipe.data.datasets] == ["a.jsonl", "c"]
    assert recipe.tokens.special_tokens.pad_token == "<pad>"


def test_the_last_of_two_wins(file):
    recipe, _ = check_recipe(file, ("seed=1", "seed=2"))
    assert recipe.training.seed == 2


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("seed", "an override reads key=value, got 'seed'"),
        ("=3", "an override reads key=value, got '=3'"),
        ("seed=[", "the value of seed is not YAML, got '['"),
        ("datasets.7.path=x", "there is no place called datasets.7.path"),
        ("base_model.x=1", "there is no place called base_model.x"),
        ("sead=1", "no key is called `sead`"),
        ("seed=many", "`seed` must be a whole number, got many"),
        ("rl=dpo", "`rl`: preference and reinforcement training are not supported yet"),
    ],
)
def test_mistakes_are_placed_on_the_command_line(file, word, message):
    recipe, problems = check_recipe(file, (word,))
    [problem] = [problem for problem in problems if problem.severity == "error"]
    assert recipe is None
    assert (problem.file, problem.line, problem.message) == ("command line", 0, message)


def test_an_override_goes_before_an_old_name_in_the_file(file):
    file.write_text(TEXT + "epochs: 3\n")
    assert check_recipe(file, ("num_epochs=2",))[0].training.num_epochs == 2
    file.write_text(TEXT + "num_epochs: 3\n")
    assert check_recipe(file, ("epochs=2",))[0].training.num_epochs == 2


def test_old_keys_work_as_overrides_too(file):
    recipe, problems = check_recipe(file, ("adam_eps=1e-6",))
    assert recipe.optimization.adam_epsilon == 1e-6
    assert [(p.file, p.code) for p in problems if p.key == "adam_eps"] == [("command line", "migrated")]


def test_aliases_that_unfold_to_billions_are_refused(file):
    layers = ", ".join(f"&{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefghi", "bcdefghij", strict=True))
    recipe, [problem] = check_recipe(file, (f"model_config={{x: [&a [1], {layers}]}}",))
    assert recipe is None
    assert (problem.file, problem.code, problem.key) == ("command line", "override", "model_config")
    assert problem.message == "the aliases in the value of model_config unfold to more than 100000 values"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model_config={a: 1, a: 2}", ("duplicate-key", "model_config.a", "the key `a` stands twice")),
        ("model_config={[a]: 1}", ("bad-key", "model_config", "a key must be a word")),
        ("model_config={a: &x [*x]}", ("alias-loop", "model_config.a.0", "the value contains itself")),
    ],
)
def test_what_is_wrong_inside_a_value_is_said(file, word, said):
    recipe, [problem] = check_recipe(file, (word,))
    assert recipe is None
    assert (problem.file, problem.line, problem.severity) == ("command line", 0, "error")
    assert (problem.code, problem.key, problem.message) == said
