"""What shipped applications serve: models that answer rows, on torch, without Ray."""

from __future__ import annotations

MODELS = {
    "reward_model": "reward_model:ServedRewardModel",
    "process_reward_model": "process_reward_model:ServedProcessRewardModel",
    "judge": "judge:ServedJudge",
    "embedding": "embedding:ServedEmbedding",
    "video_encoder": "video_encoder:ServedVideoEncoder",
}
"""Module here and class of each, imported where it is served."""
