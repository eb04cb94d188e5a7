"""Which model is trained."""

from ftkit.recipe.section.base import Field, Section
from ftkit.recipe.section.frozen import FrozenMap


class ModelSection(Section):
    """The base model and how it is read."""

    base_model: str = Field(description="Folder or hub id of the model, a GGUF file, or ftkit:smollm2-135m-instruct.")
    gguf_file: str | None = Field(
        default=None,
        description="GGUF file in the folder base_model; decoded once, the whole model in host memory (`ftkit[demo]`).",
    )
    model_type: str | None = Field(
        default=None, description="Class of transformers that reads it; checked against the model."
    )
    trust_remote_code: bool = Field(default=False, description="Run the Python code that comes with the model.")
    revision_of_model: str | None = Field(default=None, description="Branch, tag or commit on the hub.")
    config_overrides: FrozenMap = Field(
        default_factory=FrozenMap, alias="model_config", description="Values put into the model's own configuration."
    )
    flash_attention: bool | None = Field(default=None, description="Use flash attention.")
    sdp_attention: bool | None = Field(default=None, description="Use torch's scaled dot product attention.")
    eager_attention: bool | None = Field(default=None, description="Use plain attention.")
    flex_attention: bool | None = Field(default=None, description="Use flex attention.")
    xformers_attention: bool | None = Field(default=None, description="Not served; false is accepted.")
    attn_implementation: str | None = Field(default=None, description="Name of the attention implementation.")
    base_model_config: str | None = Field(
        default=None, description="Folder or hub id of the configuration, if not the model's own."
    )
    model_quantization_config: str | None = Field(
        default=None, description="Class of transformers that says how the published weights are packed."
    )
    model_quantization_config_kwargs: FrozenMap = Field(
        default_factory=FrozenMap, description="Its options, such as dequantize."
    )
    hf_use_auth_token: bool | str | None = Field(
        default=None,
        description="Read the model and data with the token of the hub; true takes it from the usual places.",
    )

    @property
    def attention(self) -> str:
        """The kind of attention asked for: auto, flash, sdpa, eager or flex."""
        named = {
            "flash_attention_2": "flash",
            "flash_attention_3": "flash",
            "sdpa": "sdpa",
            "eager": "eager",
            "flex_attention": "flex",
        }
        if self.attn_implementation:
            return named.get(self.attn_implementation, "auto")
        flags = {
            "flash": self.flash_attention,
            "sdpa": self.sdp_attention,
            "eager": self.eager_attention,
            "flex": self.flex_attention,
        }
        return next((kind for kind, wanted in flags.items() if wanted), "auto")
