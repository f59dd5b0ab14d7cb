"""Every policy loss under its catalogue name, with the options of a job where each of them counts."""

import math

import pytest
import torch

from rljob_api.catalogue.algorithms import LOSSES
from rljob_worker.algorithms.policy_losses import POLICY_LOSSES, PolicyTokens, binary_kl
from rljob_worker.algorithms.tests.builders import algorithm, double, rows_of

CLIP = {"clipLow": 0.3, "clipHigh": 0.5}
LN2 = math.log(2)

# Two rows of one token, with these ratios, and twice their losses where A = 1/2 in the first and -1/2 in the second
CASES = [
    # A = 1: -min(2, 1.5); A = -1: max(0.5, 0.7)
    ("PPOClip", CLIP, (2, 0.5), (-1.5, 0.7)),
    ("GSPO", CLIP, (2, 0.5), (-1.5, 0.7)),
    ("GSPOToken", CLIP, (2, 0.5), (-1.5, 0.7)),
    ("ClipCov", CLIP, (2, 0.5), (-1.5, 0.7)),
    # the same bounds of the log-ratio
    ("GMPO", CLIP, (math.e, 1 / math.e), (-math.exp(0.5), math.exp(-0.3))),
    # 4/τ · σ(0) = 2/τ
    ("SAPO", {"temperaturePositive": 1.0, "temperatureNegative": 4.0}, (1, 1), (-2, 0.5)),
    # -min(ρ, 1 + 3) · A · log π
    ("CISPO", {"clipHigh": 3.0}, (8, 8), (-4 * (3 * LN2 - 1), 4 * (3 * LN2 - 1))),
    ("Reinforce", {}, (2, 2), (1 - LN2, LN2 - 1)),
    ("GPG", {}, (2, 2), (1 - LN2, LN2 - 1)),
    # log-ratios ±2·ln 2 clipped to ±ln 2: -ln 2 both, and twice half the drift. It is cut at ρ - 1 = 1, where it is
    # 1 - ln 2, and goes on with slope 1: 1 at ρ = 4; at ρ = 1/4 it is -3/4 + 2·ln 2
    (
        "CPGD", {"clipLow": 0.5, "clipHigh": 1.0, "driftCoefficient": 0.5, "driftClip": 1.0}, (4, 0.25),
        (1 - LN2, LN2 - 0.75),
    ),
    ("KLCov", {"klCoefficient": 0.5}, (2, 0.5), (-2, 0.5)),
    # importance weights are cut at 20
    ("DPPOTV", {}, (2, 30), (-2, 20)),
    ("DPPOKL", {}, (2, 30), (-2, 20)),
]  # fmt: skip


def run(name, options, ratios, advantages, *, old=-1.0, held_back=False):
    columns = {"held_back": torch.full((len(ratios),), held_back)}
    row, log_probs = rows_of([1] * len(ratios)), double(*ratios).log() + old
    tokens = PolicyTokens(log_probs, torch.full_like(log_probs, old), double(*advantages), row, len(ratios), columns)
    return POLICY_LOSSES[name](tokens, algorithm(loss={"name": name, **options}).loss)


@pytest.mark.parametrize(("name", "options", "ratios", "expected"), CASES, ids=[case[0] for case in CASES])
def test_a_loss_with_the_options_of_a_job(name, options, ratios, expected):
    losses = run(name, options, ratios, (0.5, -0.5)).losses
    assert (2 * losses).tolist() == pytest.approx(expected)


def test_every_loss_of_the_catalogue_is_here():
    assert sorted(case[0] for case in CASES) == sorted(LOSSES)


def test_tokens_held_back_give_nothing_or_pay_for_moving():
    # KL-Cov: -A·ρ + 0.5 · |log ρ|
    assert run("ClipCov", CLIP, (2, 0.5), (1, -1), held_back=True).losses.tolist() == [0, 0]
    result = run("KLCov", {"klCoefficient": 0.5}, (2, 0.5), (1, -1), held_back=True)
    assert result.losses.tolist() == pytest.approx([-2 + 0.5 * LN2, 0.5 + 0.5 * LN2])


@pytest.mark.parametrize(
    ("name", "threshold", "beyond"),
    # from probability 0.5 to 0.7 and 0.3: total variation 0.2, binary KL ½·ln(0.5/0.7) + ½·ln(0.5/0.3) = 0.0872
    [("DPPOTV", 0.19, True), ("DPPOTV", 0.21, False), ("DPPOKL", 0.08, True), ("DPPOKL", 0.09, False)],
)
def test_divergences_are_compared_with_the_threshold_of_a_job(name, threshold, beyond):
    result = run(name, {"divergenceThreshold": threshold}, (1.4, 0.6), (1, -1), old=math.log(0.5))
    assert result.indicators["clip_fraction_high"].tolist() == [beyond, False]
    assert result.indicators["clip_fraction_low"].tolist() == [False, beyond]


# All advantages at all ratios; those of 2 and 0.5 lie on the bounds.
ADVANTAGES = (0.5, 0.0, -0.5) * 4
RATIOS = (2.5,) * 3 + (2.0,) * 3 + (0.4,) * 3 + (0.5,) * 3
HIGH, LOW = [(0.5, 2.5)], [(-0.5, 0.4)]
DISTANT = [(advantage, 2.5) for advantage in (0.5, 0.0, -0.5)]
BOUNDS = {"clipLow": 0.5, "clipHigh": 1.0}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("PPOClip", {**BOUNDS, "dualClip": 2.0}, {"high": HIGH, "low": LOW, "dual": [(-0.5, 2.5)]}),
        ("ClipCov", BOUNDS, {"high": HIGH, "low": LOW}),
        ("GSPO", BOUNDS, {"high": HIGH, "low": LOW}),
        ("GSPOToken", BOUNDS, {"high": HIGH, "low": LOW}),
        ("GMPO", {"clipLow": LN2, "clipHigh": LN2}, {"high": HIGH, "low": LOW}),
        ("CPGD", {**BOUNDS, "driftClip": 1.0}, {"high": HIGH, "low": LOW, "drift": DISTANT}),
        ("CISPO", {"clipHigh": 1.0}, {"high": DISTANT}),
    ],
)
def test_the_fractions_of_a_loss_count_tokens_beyond_its_bounds(name, options, expected):
    indicators = run(name, options, RATIOS, ADVANTAGES, old=0.0).indicators
    beyond = {side: _where(indicator) for side, indicator in indicators.items() if side.startswith("clip_fraction")}
    assert beyond == {f"clip_fraction_{side}": tokens for side, tokens in expected.items()}


@pytest.mark.parametrize("name", ["DPPOTV", "DPPOKL"])
def test_a_divergence_on_the_threshold_is_within_and_no_advantage_counts_as_a_bad_one(name):
    # from 0.5 to 0.75: total variation 0.25
    old, new = double(math.log(0.5)), double(math.log(0.75))
    exact = {"DPPOTV": 0.25, "DPPOKL": float(binary_kl(new, old))}[name]
    for threshold, beyond in ((exact, False), (exact * 0.99, True)):
        indicators = run(
            name, {"divergenceThreshold": threshold}, (1.5,) * 3, (0.5, 0, -0.5), old=float(old)
        ).indicators
        assert indicators["clip_fraction_high"].tolist() == [beyond, False, False]
    indicators = run(name, {"divergenceThreshold": 0.01}, (0.5,) * 3, (0.5, 0, -0.5), old=float(old)).indicators
    assert indicators["clip_fraction_low"].tolist() == [False, True, True]


def _where(indicator):
    tokens = zip(ADVANTAGES, RATIOS, indicator.tolist(), strict=True)
    return [(advantage, ratio) for advantage, ratio, holds in tokens if holds]
