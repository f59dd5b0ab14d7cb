"""What is allowed in a job and still probably not meant: sentences for `rljob plan` and `rljob run`."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from rljob_api.catalogue.algorithms import ESTIMATORS, LOSSES
from rljob_api.planning.plan import Plan, StagePlan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.data_url import without_secrets

KNOWN_LEARNING_RATES = (1e-8, 1e-2)
"""The smallest and largest in use: from the largest models to policies of a few thousand weights."""


def warnings_of(plan: Plan) -> list[str]:
    """Every warning about a plan, none of which keeps it from running."""
    return [
        *_off_policy(plan),
        *_stale(plan),
        *_cut_by_carries(plan),
        *_kl(plan),
        *_sampling(plan),
        *_mixture(plan),
        *_unused(plan),
        *_critic(plan),
        *_schedule(plan),
        *_precision(plan),
        *_offload(plan),
        *_recomputing(plan),
        *_apart(plan),
        *_experts_apart(plan),
        *_torn(plan),
        *_waiting(plan),
        *_init_from(plan),
        *_services(plan),
    ]


def _off_policy(plan: Plan) -> Iterator[str]:
    steps, loss = plan.spec.num_optimizer_steps, plan.spec.algorithm.loss.name
    if steps == 1:
        return
    if loss in LOSSES and not LOSSES[loss].has_ratio:
        yield (
            f"a step makes {steps} optimizer steps, and the loss {loss} has no probability ratio: from the second "
            "on it learns from rows of a policy that is gone; leave training.miniBatchRows out, or use PPOClip"
        )
        return
    for stage in plan.stages:
        if stage.run == "UpdatePolicy" and "old_log_probs" not in stage.reads:
            yield (
                f"a step makes {steps} optimizer steps, but no stage writes old_log_probs before {stage.name}: every "
                "probability ratio is exactly 1 and clipping does nothing; add a LogProbs stage on the policy"
            )


def _stale(plan: Plan) -> Iterator[str]:
    """Advice on rows of older weights that nothing corrects."""
    algorithm, partial = plan.spec.algorithm, plan.spec.rollout.partial
    loss, oldest = algorithm.loss, plan.staleness + (partial.max_carries if partial is not None else 0)
    if oldest == 0 or algorithm.correction is not None or "rollout_log_probs" in loss.reads:
        return
    if loss.name in LOSSES and not LOSSES[loss.name].has_ratio:
        why = f"the loss {loss.name} has no probability ratio"
    elif any(_compares_with_newest(plan, stage) for stage in plan.stages if stage.run == "UpdatePolicy"):
        why = f"the ratio of the loss {loss.name} is to the newest weights, not to those that drew the rows"
    else:
        return
    asked = [f"rollout.maxStaleness {plan.staleness}"] * (plan.staleness > 0)
    asked += ["rollout.partial"] * (partial is not None)
    versions = "1 version" if oldest == 1 else f"{oldest} versions"
    yield (
        f"with {' and '.join(asked)} rows are drawn with weights up to {versions} behind those that a "
        f"step begins to train, and {why}: they are learnt from as if the newest weights had drawn them; set "
        "algorithm.correction: {method: TruncatedImportance, upper: 2}"
    )


def _cut_by_carries(plan: Plan) -> Iterator[str]:
    """Advice on responses that are cut off before they are as long as they may be."""
    partial, longest = plan.spec.rollout.partial, plan.spec.most_sampled_tokens
    if partial is None or (surely := (partial.max_carries + 1) * partial.tokens_per_round) >= longest:
        return
    carries = ceil(longest / partial.tokens_per_round) - 1
    is_played = plan.spec.rollout.conversation is not None
    what = "a conversation that samples" if is_played else "a response of"
    yield (
        f"rollout.partial cuts off {what} more than {surely} tokens (tokensPerRound x (maxCarries + 1)) if its "
        f"steps have one round each, and {_allowed(plan.spec)} {longest}: with maxCarries {carries} none is"
    )


def _allowed(spec: RLJobSpec) -> str:
    """What says how much a trajectory may sample."""
    conversation = spec.rollout.conversation
    if conversation is None:
        return "rollout.maxResponseTokens allows"
    asked = "rollout.maxResponseTokens" if conversation.max_tokens is None else "rollout.conversation.maxTokens"
    rows = "" if spec.rows_per_trajectory == 1 else f" in {spec.rows_per_trajectory} rows"
    return f"{asked}{rows} allows"


def _compares_with_newest(plan: Plan, update: StagePlan) -> bool:
    """Whether what an update takes for old log-probs is of the weights that it begins with: its own, or a LogProbs
    stage's, which runs in the same group; and neither a column of another name nor one of a stage of the user's own."""
    writers = [stage.run for stage in plan.stages if "old_log_probs" in stage.writes]
    return "old_log_probs" not in update.rename and all(run == "LogProbs" for run in writers)


def _kl(plan: Plan) -> Iterator[str]:
    kl = plan.spec.algorithm.kl
    if kl.coefficient > 0 and kl.placement == "Loss" and kl.estimator == "K1":
        yield "kl.estimator K1 in the loss has a gradient of 0 on average; K3Weighted is the unbiased choice"
    elif kl.coefficient > 0 and kl.placement == "Loss" and kl.estimator == "AbsK1":
        yield "kl.estimator AbsK1 in the loss has a gradient that does not grow with the distance; K2's does"


def _sampling(plan: Plan) -> Iterator[str]:
    algorithm = plan.spec.algorithm
    estimator = ESTIMATORS.get(algorithm.advantage.estimator)
    if algorithm.sampling.dynamic and estimator is not None and not estimator.compares_groups:
        yield (
            f"sampling.dynamic drops groups of equal rewards, from which the estimator {estimator.name} would learn too"
        )


def _mixture(plan: Plan) -> Iterator[str]:
    train = plan.spec.data.train
    if len(train) == 1 and train[0].weight is not None:
        yield "data.train[0].weight changes nothing: there is one data set, and every prompt is drawn from it"
    for i, dataset in enumerate(train):
        if dataset.weight == 0:
            yield f"data.train[{i}].weight is 0: nothing is drawn from {without_secrets(dataset.path)}"


def _unused(plan: Plan) -> Iterator[str]:
    read = {column for stage in plan.stages for column in stage.reads}
    for stage in plan.stages:
        unread = [column for column in stage.writes if column not in read]
        if unread and ":" in stage.run:
            yield f"no stage reads {', '.join(unread)}, which {stage.name} writes"


def _critic(plan: Plan) -> Iterator[str]:
    runs = {stage.run for stage in plan.stages}
    if "Values" in runs and "UpdateCritic" not in runs:
        yield "a stage reads values of the critic, but no stage updates the critic"


def _schedule(plan: Plan) -> Iterator[str]:
    spec = plan.spec
    total = spec.stop.steps * spec.num_optimizer_steps
    if spec.training.warmup_steps >= total:
        yield (
            f"training.warmupSteps {spec.training.warmup_steps} is not less than the job's {total} optimizer steps, so "
            "the learning rate never gets to its peak"
        )
    least, most = KNOWN_LEARNING_RATES
    if not least <= spec.training.learning_rate <= most:
        yield (
            f"training.learningRate {spec.training.learning_rate:g} is outside of what models are post-trained with "
            f"({least:g} to {most:g}): large models take about 1e-6, adapters 1e-5 to "
            "1e-4, models of a few million parameters up to 1e-3"
        )


def _precision(plan: Plan) -> Iterator[str]:
    on_cpu = {plan.group(engine.group).name for engine in plan.engines if plan.group(engine.group).device == "cpu"}
    if plan.precision == "BFloat16" and on_cpu:
        yield (
            f"training.precision is BFloat16, and {', '.join(sorted(on_cpu))} computes on CPUs: one without "
            "instructions for it takes tens of times longer than in Float32, which is the default there; leave "
            "training.precision out, or ask for accelerators"
        )


def _offload(plan: Plan) -> Iterator[str]:
    asked = plan.spec.training.memory.offload
    training = [engine for engine in plan.engines if engine.kind == "Train"]
    if (asked.optimizer or asked.parameters) and all(plan.group(item.group).device == "cpu" for item in training):
        groups = ", ".join(sorted({item.group for item in training}))
        yield (
            f"training.memory.offload changes nothing: {groups} trains on CPUs, whose memory is the host's; leave it "
            "out, or ask for accelerators"
        )


def _recomputing(plan: Plan) -> Iterator[str]:
    """Groups for which nobody can say here whether they need to compute activations again."""
    if plan.spec.training.memory.activation_checkpointing != "Auto":
        return
    unknown = {item.group: item.unknown for item in plan.memory if item.unknown}
    for group in sorted({engine.group for engine in plan.engines if engine.recomputes and engine.group in unknown}):
        yield (
            f"training.memory.activationCheckpointing is Auto, and nobody knows here how large "
            f"{', '.join(unknown[group])} is: workers of {group} see it in its config.json, and compute activations "
            "again, which takes about a third more of an update, unless they have room without"
        )


def _apart(plan: Plan) -> Iterator[str]:
    """Advice on tensor-parallel groups that span pods: they exchange sums in every layer."""
    result = {(plan.group(engine.group).name, engine.mesh.tp) for engine in plan.engines}
    for group, tensor in sorted(result):
        count = plan.group(group).workers_per_host
        if count % tensor:
            yield (
                f"training.parallelism.tensor {tensor} does not divide the {count} workers of a pod of {group}: some "
                "workers that add up their parts of every layer lie in different pods, between which that takes many "
                "times longer; write a divisor of accelerator.count"
            )


def _experts_apart(plan: Plan) -> Iterator[str]:
    """Advice on expert-parallel groups that span pods: they exchange tokens in every layer."""
    result = {(plan.group(engine.group).name, engine.mesh.ep, engine.mesh.ranks_per_experts) for engine in plan.engines}
    for group, expert, together in sorted(result):
        count = plan.group(group).workers_per_host
        if count % together:
            yield (
                f"training.parallelism.expert {expert}: some of {together} workers that send each other tokens in "
                f"every layer lie in different pods of {group}, which have {count}, between which that takes many "
                "times longer; write less, or more accelerators to a pod"
            )


def _torn(plan: Plan) -> Iterator[str]:
    """Advice on replicas that share a pod with a part of another one."""
    result = {(plan.group(engine.group).name, engine.mesh.ranks_per_replica, engine.mesh.rp) for engine in plan.engines}
    for group, workers, replicas in sorted(result):
        count, pods = plan.group(group).workers_per_host, plan.group(group).replicas
        if replicas > 1 and workers % count and count % workers:
            yield (
                f"training.parallelism.replicate {replicas}: replicas of {workers} workers end in the middle of pods "
                f"of {group}, which have {count}, and gather their weights over the network; write a divisor of the "
                f"{pods} pods"
            )


def _waiting(plan: Plan) -> Iterator[str]:
    """Advice on pipeline stages that mostly wait for each other."""
    waits, num_pipeline_stages = max(
        ((axis.waits or 0, mesh.mesh.pp) for mesh in plan.meshes for axis in mesh.axes), default=(0, 1)
    )
    if waits > 0.5:
        yield (
            f"training.parallelism.pipeline {num_pipeline_stages}: workers wait {waits / (1 + waits):.0%} of their "
            "time for other "
            "stages, which have too few micro-batches to work on meanwhile; lower training.tokensPerMicroBatch, or "
            "have more rows in an optimizer step"
        )


def _init_from(plan: Plan) -> Iterator[str]:
    source = plan.spec.checkpoint.init_from
    trained = {engine.path for engine in plan.engines if engine.trainable}
    for engine in plan.engines:
        if source is not None and engine.kind == "Train" and not engine.trainable and engine.path in trained:
            yield (
                f"checkpoint.initFrom gives the weights of {source} to models in training alone: {engine.model} stays "
                f"at {engine.path}, and distances to it are measured from there; to have another, list {engine.model} "
                "under models with a path, which may be a run or a checkpoint"
            )


def _services(plan: Plan) -> Iterator[str]:
    simulator = plan.spec.rollout.simulator
    asked = {reward.service for reward in plan.spec.rewards}
    if simulator is not None and simulator.video is not None:
        asked.add(simulator.video.service)
    for service in plan.spec.services:
        if service.name not in asked:
            yield f"nothing asks the service {service.name}: it takes its place and answers nobody"
