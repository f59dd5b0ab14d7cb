"""Can the rows that a step asks for exist, and does the pipeline ask for them?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.algorithms import ESTIMATORS, LOSSES
from rljob_api.catalogue.columns import needs_baseline
from rljob_api.checks.algorithm import unseen
from rljob_api.checks.subject import Subject, problem
from rljob_api.vocabulary.problem import Problem

_PATH = "spec.algorithm.sampling"


def check_distribution(subject: Subject) -> Iterator[Problem]:
    """Training needs samples from the full distribution, whose log-probabilities the loss corrects for."""
    rollout = subject.spec.rollout
    if rollout.temperature == 0:
        if needs_baseline(subject.spec):
            message = "the baseline is the greedy response, so at temperature 0 every advantage is 0"
        else:
            message = "training needs sampled responses; at temperature 0 all responses to a prompt are one"
        yield problem("spec.rollout.temperature", 0, message, "Write 1.0. validation.temperature may be 0.")
    if rollout.top_p < 1:
        yield problem("spec.rollout.topP", rollout.top_p, _TRUNCATED, "Write 1.0.")
    if rollout.top_k > 0:
        yield problem("spec.rollout.topK", rollout.top_k, _TRUNCATED, "Write 0.")
    if rollout.min_p > 0:
        yield problem("spec.rollout.minP", rollout.min_p, _TRUNCATED, "Write 0.0.")


_TRUNCATED = (
    "what is left of the distribution is normalised anew when a token is drawn and the trainer's full distribution is "
    "not, so log-probabilities would not be those the tokens were sampled with"
)


def check_validation_sampling(subject: Subject) -> Iterator[Problem]:
    """At temperature 0 nothing is drawn."""
    validation = subject.spec.validation
    if validation.temperature > 0:
        return
    if validation.samples_per_prompt > 1:
        message = "at validation.temperature 0, its default, all responses to a prompt are the same"
        fix = "Give validation.temperature too, such as 0.6, or leave this out."
        yield problem("spec.validation.samplesPerPrompt", validation.samples_per_prompt, message, fix)
    for path, result, default in (
        ("topP", validation.top_p, 1.0),
        ("topK", validation.top_k, 0),
        ("minP", validation.min_p, 0.0),
    ):
        if result != default:
            message = "at validation.temperature 0, its default, the most likely token is taken, whatever this says"
            yield problem(
                f"spec.validation.{path}", result, message, "Give validation.temperature too, or leave this out."
            )


def check_max_mismatch(subject: Subject) -> Iterator[Problem]:
    """A bound for what differs by rounding alone, where weights differ, too."""
    rollout = subject.spec.rollout
    if rollout.max_mismatch is None:
        return
    fix = "Leave rollout.maxMismatch out."
    if rollout.max_staleness > 0:
        message = "with rollout.maxStaleness above 0 rows are drawn with older weights, so that log-probs differ"
        yield problem("spec.rollout.maxMismatch", rollout.max_mismatch.model_dump(by_alias=True), message, fix)
    if rollout.partial is not None:
        message = "with rollout.partial tokens may be of older weights, so that log-probs differ"
        yield problem("spec.rollout.maxMismatch", rollout.max_mismatch.model_dump(by_alias=True), message, fix)


def check_partial(subject: Subject) -> Iterator[Problem]:
    """Rounds that end before the longest response does."""
    partial, most = subject.spec.rollout.partial, subject.spec.most_sampled_tokens
    if partial is None or (asked := partial.tokens_per_round) < most:
        return
    what = f"a response has at most rollout.maxResponseTokens {most}"
    if subject.spec.rollout.conversation is not None:
        what = (
            f"a conversation samples at most {most} tokens (maxTokens or rollout.maxResponseTokens in each of its rows)"
        )
    message = f"{what} and ends in its first round, so nothing is ever carried on"
    fix = f"Write at most {most - 1}, or leave rollout.partial out."
    yield problem("spec.rollout.partial.tokensPerRound", asked, message, fix)


def check_stops(subject: Subject) -> Iterator[Problem]:
    """Texts and tokens that end a response: each once."""
    rollout = subject.spec.rollout
    for field, values in (("stop", rollout.stop), ("stopTokenIds", rollout.stop_token_ids)):
        for i, value in enumerate(values):
            if value in values[:i]:
                yield problem(f"spec.rollout.{field}[{i}]", value, "this stands in the list before", "Leave it out.")
    for i, text in enumerate(rollout.stop):
        if "\N{REPLACEMENT CHARACTER}" in text:
            message = "this holds U+FFFD, which stands for bytes that are not text, so no response contains it"
            yield problem(f"spec.rollout.stop[{i}]", text, message, "Write the text that was meant.")


def check_dynamic(subject: Subject) -> Iterator[Problem]:
    """Groups whose rewards can differ, and options that mean something only when groups are dropped."""
    algorithm, sampling = subject.spec.algorithm, subject.spec.algorithm.sampling
    if not sampling.dynamic:
        reader = "a job without sampling.dynamic drops no group, so it"
        yield from unseen("sampling", reader, sampling, {}, seen=("resampling",))
        return
    if algorithm.group_size == 1:
        message = "the rewards of one response never vary, so every group would be dropped"
        yield problem(f"{_PATH}.dynamic", True, message, "Write groupSize: 2 or more, or dynamic: false.")
    bounds, size = sampling.success_range, algorithm.group_size
    if bounds is not None and not any(bounds.low <= right / size <= bounds.high for right in range(1, size)):
        message = f"no group of {size} of which some are right and some wrong is within it, so every group is dropped"
        fix = "Write low: 0.1 and high: 0.9, or a larger groupSize."
        yield problem(f"{_PATH}.successRange", bounds.to_json(), message, fix)
    rewards = subject.spec.rewards
    if rewards and all(reward.weight == 0 for reward in rewards):
        message = "every reward has weight 0, so rewards never vary and every group would be dropped"
        yield problem(f"{_PATH}.dynamic", True, message, "Give one a weight other than 0, or write dynamic: false.")


def check_resampling(subject: Subject) -> Iterator[Problem]:
    """Drawing rows anew breaks groups up."""
    resampling = subject.spec.algorithm.sampling.resampling
    if resampling is None:
        return
    estimator = ESTIMATORS.get(subject.spec.algorithm.advantage.estimator)
    if estimator is not None and estimator.compares_groups:
        message = f"{estimator.name} compares the responses to one prompt, and rows drawn anew are not whole groups"
        fix = "Leave resampling out, or use an estimator such as GAE or ReinforcePlusPlus."
        yield problem(f"{_PATH}.resampling", resampling.method, message, fix)
    loss = subject.spec.algorithm.loss.name
    if loss in LOSSES and "covariance_fraction" in LOSSES[loss].options:
        message = f"{loss} chooses tokens over the mini-batch as if every row counted once"
        yield problem(f"{_PATH}.resampling", resampling.method, message, "Leave resampling out, or use PPOClip.")
    if resampling.weighting != "Power" and resampling.power != 2.0:
        message = f"{resampling.weighting} draws by rank, so it does not look at it"
        yield problem(
            f"{_PATH}.resampling.power", resampling.power, message, "Leave it out, or write weighting: Power."
        )


def check_source(subject: Subject) -> Iterator[Problem]:
    """A dag of one's own has the stage that does what `sampling` asks for."""
    sampling = subject.spec.algorithm.sampling
    asked = {"dynamic": sampling.dynamic, "resampling": sampling.resampling is not None}
    runs = {stage.run: stage.name for stage in subject.resolution.declared}
    for field, wanted in asked.items():
        if wanted and "Rollout" in runs and "Sample" not in runs:
            message = f"stage {runs['Rollout']} generates once, so nothing would do this"
            yield problem(f"{_PATH}.{field}", True, message, "Write one stage with run: Sample for Rollout and Reward.")
