"""The commented RLJob that `rljob new NAME` writes."""

from __future__ import annotations

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
      path: Qwen/Qwen3-0.6B         # a Hugging Face name, or a directory beside this file

  data:
    train:
      - path: data/train.parquet    # parquet or JSON lines with one prompt per row
    validation:
      - path: data/validation.parquet
    promptColumn: prompt            # a text, or a list of chat messages
    applyChatTemplate: true         # put a text into the model's chat template
    batchSize: 16                   # prompts per step, over the whole job
    maxPromptTokens: 512            # longer prompts are left out

  rewards:                          # the reward of a response is the weighted sum
    - name: correct
      run: rljob_worker.rewards:math_answer   # or your own, as module:function
      column: answer                # the data column that it compares with

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
    maxResponseTokens: 512
    temperature: 1.0

  validation:
    everySteps: 20

  checkpoint:
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


def starter_yaml(name: str) -> str:
    """The starter job called `name`.  Raises InvalidJobError for a name that a job cannot have."""
    if problems := list(check_metadata(Metadata(name=name))):
        raise InvalidJobError(problems)
    return _STARTER.format(name=name)
