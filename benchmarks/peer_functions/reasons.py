"""Why a peer's result differs from ours, and who is right."""

from __future__ import annotations

_BOTH = ("value", "gradient")

_REASONS: tuple[tuple[str, tuple[tuple[str, str, tuple[str, ...]], ...]], ...] = (
    (
        "A group of one: their baseline is 0 and the raw reward becomes the advantage, a row rewarded without anything "
        "to compare with; ours is 0, as in TRL.",
        (
            ("GRPO (edge)", "verl siiRL", ("value",)),
            ("GRPO vectorised (edge)", "verl", ("value",)),
            ("DrGRPO (edge)", "verl siiRL", ("value",)),
            ("RLOO (edge)", "verl", ("value",)),
            ("OPO (edge)", "verl", ("value",)),
            ("ReinforcePlusPlusBaseline (edge)", "verl", ("value",)),
            ("CPGD StandardDeviation (edge)", "siiRL", ("value",)),
            ("CPGD Uniform (edge)", "siiRL", ("value",)),
        ),
    ),
    (
        "Their statistics are float32 whatever the rewards are.",
        (("GRPO vectorised", "verl", ("value",)),),
    ),
    (
        "A group of one stops their run; ours gives it 0.",
        (("GRPOPassK (edge)", "verl", ("error",)),),
    ),
    (
        "Their weight divides responses by prompts, too large by the group size until the cap of 3 hides it, and "
        "counts groups of one as varied; the paper divides prompts by prompts, as ours.",
        (("CPGD ClipFilter", "siiRL", ("value",)), ("CPGD ClipFilter (edge)", "siiRL", ("value",))),
    ),
    (
        "An agent without a token in a turn: theirs bootstraps from its padding, 0; ours from the next token in the "
        "order of acting.",
        (("MARFT returns", "siiRL", ("value",)),),
    ),
    (
        "1e-8 is added to their token count; ours divides by the count.",
        (
            ("GSPOToken", "verl", _BOTH),
            ("GSPOToken (edge)", "verl", _BOTH),
            ("SequenceMeanTokenMean", "verl", _BOTH),
            ("SequenceMeanTokenMean (edge)", "verl", _BOTH),
            ("SAPO", "verl", _BOTH),
            ("SAPO (edge)", "verl", _BOTH),
            ("GMPO", "verl siiRL", _BOTH),
        ),
    ),
    (
        "A row without an action: they count it in the mean over rows; ours counts rows with actions, as verl's "
        "aggregations do.",
        (
            ("GMPO (edge)", "verl siiRL", _BOTH),
            ("SequenceMeanTokenSum (edge)", "siiRL", _BOTH),
            ("PPOClip SequenceMeanTokenMean (edge)", "TRL", _BOTH),
            ("PPOClip SequenceMeanTokenSum (edge)", "TRL", _BOTH),
            ("PPOClip SequenceMeanTokenSumNorm (edge)", "TRL", _BOTH),
            ("GSPO (edge)", "TRL", _BOTH),
            ("SAPO (edge)", "TRL", _BOTH),
        ),
    ),
    (
        "A row without an action divides 0 by 0 in theirs, and the loss is NaN.",
        (("GSPOToken (edge)", "siiRL", _BOTH), ("SequenceMeanTokenMean (edge)", "siiRL", _BOTH)),
    ),
    (
        "They do not divide by the rows, so the loss grows with the batch; Dr. GRPO's is a mean over rows, as ours.",
        (
            ("SequenceMeanTokenSumNorm", "siiRL", _BOTH),
            ("SequenceMeanTokenSumNorm (edge)", "siiRL", _BOTH),
        ),
    ),
    (
        "They clamp k3 to 10 and its log-ratio to 20, beyond which a far token is not pulled back; ours goes on.",
        (
            ("K3 (edge)", "verl siiRL", _BOTH),
            ("K3Straight (edge)", "verl", ("value",)),
        ),
    ),
    (
        "Their inner function does not know the suffix `+`, and raises.",
        (
            ("K1Straight", "siiRL", ("error",)),
            ("K1Straight (edge)", "siiRL", ("error",)),
            ("K3Straight", "siiRL", ("error",)),
            ("K3Straight (edge)", "siiRL", ("error",)),
        ),
    ),
    (
        "Same gradient; their value is ρ·A·log π, ours the surrogate ρ·A of the paper.",
        (
            ("DPPOTV", "verl", ("value",)),
            ("DPPOTV (edge)", "verl", ("value",)),
            ("DPPOKL", "verl", ("value",)),
            ("DPPOKL (edge)", "verl", ("value",)),
        ),
    ),
    (
        "Same gradient; they clip log π, ours log ρ as in the paper's Φ.",
        (("CPGD", "siiRL", ("value",)), ("CPGD (edge)", "siiRL", ("value",))),
    ),
    (
        "Same gradient; a token outside the ratio's bounds is no candidate in theirs and keeps its constant value. "
        "The paper draws from all tokens, as ours, before any has moved.",
        (("ClipCov (edge)", "verl siiRL", ("value",)),),
    ),
    (
        "Their temperatures are rounded to float32.",
        (("SAPO", "TRL", _BOTH),),
    ),
)

REASONS: dict[tuple[str, str, str], str] = {
    (function, system, quantity): reason
    for reason, cells in _REASONS
    for function, systems, quantities in cells
    for system in systems.split()
    for quantity in quantities
}
