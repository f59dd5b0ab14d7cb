"""What a job may ask of pictures."""

import pytest

from rljob_api.tests.builders import problems

SEES = "data.imagesColumn=images"


def refusals(*overrides: str) -> dict[str, list[str]]:
    """Messages by path."""
    result: dict[str, list[str]] = {}
    for problem in problems(*overrides):
        result.setdefault(problem.path, []).append(str(problem))
    return result


def test_budgets_alone_ask_for_nothing() -> None:
    assert refusals("data.image={minPixels: 784, maxPixels: 784}", "data.video={maxFrames: 4}") == {}


def test_a_bound_of_the_mismatch_goes_with_new_weights() -> None:
    assert refusals("rollout.maxMismatch={probsDiffMax: 0.1, steps: 3}") == {}


@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_least_size_above_the_largest_is_refused(kind: str) -> None:
    result = refusals(f"data.{kind}={{minPixels: 1025, maxPixels: 1024}}")
    assert list(result) == [f"spec.data.{kind}.minPixels"]
    assert f"more than data.{kind}.maxPixels, 1024" in result[f"spec.data.{kind}.minPixels"][0]


@pytest.mark.parametrize(
    ("override", "path", "words"),
    [
        ("data.image={minPixels: 0}", "spec.data.image.minPixels", "1"),
        ("data.imagesColumn=prompt", "spec.data.imagesColumn", "text of the prompt"),
        ("data.videosColumn=prompt", "spec.data.videosColumn", "text of the prompt"),
        ("models.0.vision={learningRate: 1.0e-6}", "spec.models[0].vision.learningRate", "Write train: true"),
        ("models.0.vision={train: true}", "spec.models[0].vision.train", "would learn nothing"),
        (
            "models=[{name: actor, path: m, vision: {train: true}, adapter: {rank: 2}}]",
            "spec.models[0].vision.train",
            "beside the decoder",
        ),
        ("training.patchesPerMicroBatch=64", "spec.training.patchesPerMicroBatch", "there are no patches"),
        ("rollout.maxMismatch={probsDiffMax: 0}", "spec.rollout.maxMismatch.probsDiffMax", "0"),
        ("rollout.maxMismatch={probsDiffMax: 1.1}", "spec.rollout.maxMismatch.probsDiffMax", "1"),
        (
            "rollout={maxResponseTokens: 32, maxMismatch: {probsDiffMax: 0.1}, maxStaleness: 1}",
            "spec.rollout.maxMismatch",
            "older weights",
        ),
        (
            "rollout={maxMismatch: {probsDiffMax: 0.1}, partial: {tokensPerRound: 8, maxCarries: 1}}",
            "spec.rollout.maxMismatch",
            "with rollout.partial tokens may be of older weights",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(override: str, path: str, words: str) -> None:
    messages = refusals(override)[path]
    assert any(words in message for message in messages)


def test_an_engine_without_pictures_is_named() -> None:
    messages = refusals(SEES, "training.engine=Megatron")["spec.data.imagesColumn"]
    assert any("training.engine Megatron has no models that see" in message for message in messages)
    assert not refusals(SEES, "rollout.engine=Transformers").get("spec.data.imagesColumn")
    assert not refusals(SEES, "rollout.engine=VLLM").get("spec.data.imagesColumn")
