"""What shipped applications serve: models that answer rows, on torch, without Ray."""

from __future__ import annotations

MODELS = {
    "reward_model": "reward_model:RewardModel",
    "process_reward_model": "process_reward_model:ProcessRewardModel",
    "judge": "judge:Judge",
    "embedding": "embedding:Embedding",
}
"""Module here and class of each, imported where it is served."""
