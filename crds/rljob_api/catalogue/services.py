"""Applications that rljob ships for `services`, and the options of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from rljob_api.vocabulary.model import ApiModel

PREFIX = "rljob_worker.services:"

RAY_VERSION = "2.60.0"
"""Ray's version in the image that serves; a RayService has to name it."""

RAY_APPLICATION = "rljob_worker.services.ray_service:application"
"""What KubeRay lets Ray Serve import, with a service as its argument."""

RAY_GPU = "GPU"
"""What Ray counts in a field of its own, num_gpus; all others it finds among `resources`, by their names."""

RAY_TIMEOUTS = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # as long as its start is waited for; else 5
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",  # else 10
}
"""On a machine that is very busy: Ray Serve kills a proxy that takes longer, and with it all that it was to answer."""

RAY_GATE = "rljob_worker.services.gate:middlewares"
"""What stands in Ray Serve's proxy before every application."""


class TokenizerOptions(ApiModel):
    """How a model that reads texts gets their tokens."""

    tokenizer: str | None = Field(default=None, min_length=1)
    """Where the tokenizer is. Unset: with the model."""

    max_tokens: int = Field(default=2048, ge=1)
    """Tokens of a text, at most; a longer one loses its beginning, which the metric `truncated` counts. Default
    2048."""


class Classifier(TokenizerOptions):
    """A sequence classifier with one output (Bradley-Terry), wherever it runs: what it reads, and what its number
    becomes."""

    template: str | None = Field(default=None, min_length=1, max_length=65536)
    """The text that the model reads: `{prompt}`, `{response}` and the data's columns in braces stand for what a row
    has. Unset: the tokenizer's chat template over prompt and response, or where it has none, one after the other."""

    activation: Literal["None", "Sigmoid"] = "None"
    """What becomes of the model's number. Default None."""


class ServedModel(ApiModel):
    """What every shipped application says of its model."""

    path: str = Field(min_length=1)
    """A directory with the model, or a Hugging Face name. A relative directory begins at the YAML."""

    precision: Literal["Float32", "BFloat16"] = "Float32"
    """Number format. Default Float32."""


class ServedTextModel(ServedModel, TokenizerOptions):
    """What an application says of a model that reads texts."""

    batch_tokens: int = Field(default=16384, ge=1)
    """Tokens, padding included, that the model reads at once. Default 16384."""


class RewardModelOptions(ServedTextModel, Classifier):
    """`AutoModelForSequenceClassification`, on Ray Serve."""


class ProcessRewardModelOptions(ServedTextModel):
    """A token classifier with two labels, wrong and right, read at the end of each step of the answer:
    `AutoModelForTokenClassification`."""

    template: str = Field(default="{prompt}", min_length=1, max_length=65536)
    """The text before the first step, as in a reward model. Default `{prompt}`."""

    separator: str = Field(default="\n", min_length=1)
    """What ends a step of the answer, and what the model reads after each. Default: the end of a line."""

    aggregate: Literal["Minimum", "Mean", "Product", "Last", "Sum"] = "Minimum"
    """How the reward of the row follows from those of its steps, each between 0 and 1. A reward that is spread over
    steps does not look at it. Default Minimum."""


class JudgeOptions(ServedTextModel):
    """A generating model that is asked for a number: `AutoModelForCausalLM`."""

    rubric: str = Field(min_length=1, max_length=65536)
    """The question, one message of a user: `{prompt}`, `{response}` and the data's columns in braces stand for what a
    row has."""

    mark: str = Field(default="####", min_length=1)
    """What comes before the number in the judge's answer, the last of them counts. Default `####`."""

    lowest: float = 0.0
    """The least number of the rubric, which is a reward of 0. Default 0."""

    highest: float = 1.0
    """The largest number of the rubric, which is a reward of 1. Default 1."""

    votes: int = Field(default=1, ge=1, le=64)
    """Answers of the judge to each row; their mean is the reward. Default 1."""

    temperature: float = Field(default=0.0, ge=0, le=10)
    """Temperature of the judge's sampling; 0 takes the likeliest token. Default 0."""

    max_new_tokens: int = Field(default=256, ge=1)
    """Tokens of an answer, at most. Default 256."""

    unparsed: float = Field(default=0.0, ge=0, le=1)
    """The reward of a row of whose votes none has a number within the bounds; the metric `unparsed` counts them.
    Default 0."""

    @model_validator(mode="after")
    def _votes_can_differ(self) -> Self:
        if self.highest <= self.lowest:
            raise ValueError(f"highest {self.highest:g} is not above lowest {self.lowest:g}")
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(f"{self.votes} votes at temperature 0 are all the same; write a temperature above 0")
        return self


class EmbeddingOptions(ServedTextModel):
    """A model that turns texts into vectors: `AutoModel`, mean over tokens. The reward is the cosine of response and
    reference."""


class VideoEncoderOptions(ServedModel):
    """V-JEPA 2, which turns videos of episodes into vectors: the mean of what its encoder says of all patches."""


VIDEO_ENCODER = "video_encoder"
"""The application that rollout.simulator.video asks."""

SHIPPED: Mapping[str, type[ServedModel]] = {
    "reward_model": RewardModelOptions,
    "process_reward_model": ProcessRewardModelOptions,
    "judge": JudgeOptions,
    "embedding": EmbeddingOptions,
    VIDEO_ENCODER: VideoEncoderOptions,
}
"""The options of each, by its name in `rljob_worker.services`."""
