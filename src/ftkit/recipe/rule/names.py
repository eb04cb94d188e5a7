"""Rules about the model, its attention, its tokenizer, and trackers."""

from __future__ import annotations

from ftkit.recipe.rule.base import Found, Rule, View, error, note, warning
from ftkit.recipe.rule.words import pascal_prefix

ATTENTIONS = ("flash_attention", "sdp_attention", "eager_attention", "flex_attention")
KINDS = {
    "flash_attention_2": ("flash_attention",),
    "flash_attention_3": ("flash_attention",),
    "sdpa": ("sdp_attention",),
    "eager": ("eager_attention",),
    "flex_attention": ("flex_attention",),
}
WANDB = ("wandb_entity", "wandb_name", "wandb_run_id", "wandb_watch", "wandb_log_model")
UNRELATED = frozenset({"Llama", "Qwen2", "Gemma", "Bloom", "Mpt", "Falcon", "GPTNeoX"})  # no two share a vocabulary
MLFLOW = ("mlflow_run_name", "hf_mlflow_log_artifacts")


def two_attentions(r: View) -> Found:
    """Attention is computed in one way."""
    asked = [key for key in ATTENTIONS if r[key]]
    if len(asked) > 1:
        yield error(asked[1], f"{' and '.join(asked)} cannot all be true", "keep one of them")


def attention_contradicts(r: View) -> Found:
    """`attn_implementation` names one way to compute attention, a flag beside it another."""
    asked, kinds = next((key for key in ATTENTIONS if r[key]), None), KINDS.get(r.attn_implementation)
    if asked and kinds and asked not in kinds:
        message = f"attn_implementation: {r.attn_implementation} contradicts {asked}: true"
        yield error("attn_implementation", message, f"take {asked} out")


def tokenizer_of_another_family(r: View) -> Found:
    """The tokenizer's class belongs to another model family than `model_type`: token ids would mean other words."""
    model, tokenizer = pascal_prefix(r.model_type or ""), (r.tokenizer_type or "").split("Tokenizer")[0]
    if {model, tokenizer} <= UNRELATED and model != tokenizer:
        message = f"tokenizer_type: {r.tokenizer_type} is not the tokenizer of {r.model_type}"
        yield warning("tokenizer_type", message, "take tokenizer_type out; the model's folder names its tokenizer")


def token_listed_twice(r: View) -> Found:
    """A token to add stands twice in `tokens`."""
    for index, token in enumerate(r.tokens):
        if token in r.tokens[:index]:
            yield warning(f"tokens.{index}", f"`{token}` is listed twice", "keep one")


def token_is_empty(r: View) -> Found:
    """An empty token would match everywhere."""
    for index, token in enumerate(r.tokens):
        if not token.strip():
            yield error(f"tokens.{index}", "a token cannot be empty", "take the line out")


def bos_is_eos(r: View) -> Found:
    """Beginning and end of a text are the same token: some models are made so, others never learn to stop."""
    special = r.special_tokens
    if special.bos_token and special.bos_token == special.eos_token and "endoftext" not in special.bos_token:
        message = f"bos_token and eos_token are both {special.eos_token}"
        yield warning("special_tokens.eos_token", message, "use the model's own end of text")


def pad_is_unk(r: View) -> Found:
    """Padding is never trained on, and here shares its token with unknown text."""
    special = r.special_tokens
    if special.pad_token and special.pad_token == special.unk_token:
        message = f"pad_token and unk_token are both {special.pad_token}, so unknown text counts as padding"
        yield note("special_tokens.pad_token", message, "fine while the tokenizer falls back to bytes")


def wandb_without_project(r: View) -> Found:
    """Weights & Biases is used when `wandb_project` names a project; its other keys alone do nothing."""
    given = [key for key in WANDB if r[key] and str(r[key]).lower() != "false"]
    if given and not r.wandb_project:
        message = f"`{given[0]}` has no effect without wandb_project"
        yield warning(given[0], message, "set wandb_project, or take it out")


def wandb_off_with_project(r: View) -> Found:
    """`use_wandb: false` turns tracking off, whatever else stands there."""
    if r.use_wandb is False and r.wandb_project:
        yield note("use_wandb", "wandb_project has no effect with use_wandb: false", "take one of them out")


def mlflow_without_experiment(r: View) -> Found:
    """MLflow is used when `mlflow_tracking_uri` says where it is; its other keys alone do nothing."""
    given = [key for key in MLFLOW if r[key]]
    if given and not (r.mlflow_tracking_uri):
        message = f"`{given[0]}` has no effect without mlflow_tracking_uri"
        yield warning(given[0], message, "set mlflow_tracking_uri, or take it out")


def secret_in_recipe(r: View) -> Found:
    """A recipe is copied beside the run and passed from hand to hand: no place for a token."""
    for key in ("hf_use_auth_token", "comet_api_key"):
        if isinstance(r[key], str):
            place = "HF_TOKEN" if key == "hf_use_auth_token" else "COMET_API_KEY"
            yield error(key, "a token does not belong in a recipe", f"set it as {place} in the environment instead")


RULES: tuple[Rule, ...] = (
    two_attentions,
    attention_contradicts,
    tokenizer_of_another_family,
    token_listed_twice,
    token_is_empty,
    bos_is_eos,
    pad_is_unk,
    wandb_without_project,
    wandb_off_with_project,
    mlflow_without_experiment,
    secret_in_recipe,
)
