"""The commented RLJob that `rljob new NAME` writes."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.checks.names import check_metadata
from rljob_api.v1alpha1 import Metadata
from rljob_api.vocabulary.problem import InvalidJobError

_STARTER = """\
# {name}: a reinforcement-learning job.  What is not written here has a good default.
#
#   rljob plan {name}.yaml      what would run where
#   rljob run {name}.yaml       run it on this machine
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata:
  name: {name}                      # lower-case letters, digits and dashes, at most 40
spec:
  models:
    - name: actor                   # the policy; the reference model starts as a copy of it
      path: {model}         # a Hugging Face name, or a directory beside this file

  data:
    train:
      - path: {train}    # parquet or JSON lines with one prompt per row
{validation_data}    promptColumn: {prompt_column}            # a text, or a list of chat messages
    applyChatTemplate: {template}         # put a text into the model's chat template
    batchSize: {batch_size}                   # prompts per step, over the whole job
    maxPromptTokens: {max_prompt_tokens}            # longer prompts are left out

  rewards:                          # the reward of a response is the weighted sum
    - name: {reward_name}
      run: {reward}   # {reward_remark}
{answer_column}
  algorithm:
    name: GRPO                      # or PPO, which trains a critic
    groupSize: 8                    # responses per prompt
    kl:
      coefficient: 0.001            # how strongly to stay near the reference; 0 = no reference model

  workerGroups:
    - name: train                   # one group: all stages share its accelerators
      replicas: 1                   # pods = hosts
      accelerator:
        profile: cpu                # nvidia-h100, amd, ascend-910 ... on a cluster
        count: 1                    # accelerators per pod; with cpu, worker processes

  training:
    learningRate: 1.0e-6
    # miniBatchRows: 64             # rows per optimizer step; unset = the whole batch, which is on-policy

  rollout:
    maxResponseTokens: {max_response_tokens}{positions}
    temperature: 1.0

{validation_steps}  checkpoint:
    everySteps: 20
    keepLast: 2

  stop:
    steps: 100

  monitoring:
    trackers: [TensorBoard]

  # dag:                            # unset = the algorithm's own pipeline, which `rljob plan` shows
  #   stages:
  #     - {{name: rollout, run: Rollout}}
  #     - {{name: reward, run: Reward, after: [rollout]}}
  #     - {{name: reference, run: LogProbs, models: [reference], after: [rollout]}}
  #     - {{name: advantage, run: Advantage, after: [reward]}}
  #     - {{name: update, run: UpdatePolicy, after: [advantage, reference], balance: Tokens}}
"""

SHIPPED_REWARDS = "rljob_worker.rewards:"

_OR_YOURS, _YOURS = "or your own, as module:function", "a function of a module beside this file"
_COLUMN = "      column: {}                # the data column that it compares with\n"


@dataclass(frozen=True, slots=True)
class StarterInputs:
    """What a starter job says of model and data."""

    model: str = "Qwen/Qwen3-0.6B"
    train: str = "data/train.parquet"
    validation: str | None = "data/validation.parquet"
    prompt_column: str = "prompt"
    answer_column: str | None = "answer"
    """What the reward compares with; None for one that needs none."""
    reward: str = SHIPPED_REWARDS + "math_answer"
    reward_name: str = "correct"
    applies_template: bool = True
    batch_size: int = 16
    max_prompt_tokens: int = 512
    max_response_tokens: int = 512
    max_positions: int | None = None
    """Tokens of prompt and response together that the model reads, where that is known."""


def starter_yaml(name: str, beginning: StarterInputs | None = None) -> str:
    """The starter job called `name`.  Raises InvalidJobError for a name that a job cannot have."""
    if problems := list(check_metadata(Metadata(name=name))):
        raise InvalidJobError(problems)
    begun = beginning or StarterInputs()
    reads = f"        # the model reads {begun.max_positions} tokens, the prompt's among them"
    return _STARTER.format(
        name=name,
        model=begun.model,
        train=begun.train,
        validation_data=f"    validation:\n      - path: {begun.validation}\n" if begun.validation else "",
        validation_steps="  validation:\n    everySteps: 20\n\n" if begun.validation else "",
        prompt_column=begun.prompt_column,
        reward_name=begun.reward_name,
        reward=begun.reward,
        reward_remark=_OR_YOURS if begun.reward.startswith(SHIPPED_REWARDS) else _YOURS,
        answer_column="" if begun.answer_column is None else _COLUMN.format(begun.answer_column),
        template=str(begun.applies_template).lower(),
        batch_size=begun.batch_size,
        max_prompt_tokens=begun.max_prompt_tokens,
        max_response_tokens=begun.max_response_tokens,
        positions=reads if begun.max_positions else "",
    )
