"""`FSDPEngine`: scores rows, takes optimizer steps with gradient accumulation over micro-batches, streams weights,
writes checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from rljob_api.memory.sizes import BUCKET_BYTES
from rljob_worker.algorithms.metric_accumulator import read_all
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.trajectories import TRAJECTORY_ID
from rljob_worker.devices.memory import give_back
from rljob_worker.engines.attention.heads import key_heads
from rljob_worker.engines.fsdp.balance import Balance
from rljob_worker.engines.fsdp.checkpoint import sharded
from rljob_worker.engines.fsdp.collectives import Agreement, Stopwatch
from rljob_worker.engines.fsdp.layers import TRANSFORMERS, Layers
from rljob_worker.engines.fsdp.optimizer import ShardedOptimizer
from rljob_worker.engines.fsdp.outputs import ReferenceModel, compared_with, outputs, values_of
from rljob_worker.engines.fsdp.pipeline import MicroBatchPipeline, pipeline_passes
from rljob_worker.engines.fsdp.settings import DTYPES, TrainSettings
from rljob_worker.engines.fsdp.sharding import free_gathered_weights, freeze_tower, hold_gradients, is_held, shard
from rljob_worker.engines.fsdp.step_micro_batches import StepMicroBatch, broadcast_outputs, output_kinds, total_loss
from rljob_worker.engines.fsdp.tensors.full import buckets_at, full_tensors
from rljob_worker.engines.fsdp.tensors.merged import merged_tensors
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.log_probs.linear import LastLayer
from rljob_worker.engines.micro_batch import MicroBatch, response_last_layer, response_log_probs
from rljob_worker.engines.models import (
    Adapter,
    DrawnWeights,
    ValueModel,
    WeightFiles,
    checkpoint_tensors,
    draw_adapter,
    trained_parameters,
)
from rljob_worker.engines.models.actions import action_words_of, num_state_values, one_forward_of
from rljob_worker.engines.models.vision import is_of_tower
from rljob_worker.engines.packing import PatchBudget, micro_batches, placeholder, shared_prompts
from rljob_worker.engines.parallel.context import Sharing
from rljob_worker.engines.parallel.mesh import ProcessMesh, alone
from rljob_worker.engines.picture_reader import PictureReader, has_own_pictures, require_no_pictures
from rljob_worker.engines.protocols import Objective, ScoringEngine, Shards
from rljob_worker.engines.router import routers, routing_of
from rljob_worker.metrics.scalars import Scalar, mean, merge_all, total
from rljob_worker.storage.paths import StoragePath

PATCHES_AHEAD = 1 << 17
"""Patches of rows that are decoded before they are asked for: 100 MB of pixels, which stay until then."""


class FSDPEngine:
    """A TrainEngine (see `protocols`) for a causal LM or a `ValueModel`, over the ranks of one mesh.

    Without a mesh it is one rank's own. Work is cut into micro-batches by tokens; ranks agree on the largest number of
    them and a rank with fewer computes placeholders of weight zero, so that every collective has all its partners.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        settings: TrainSettings,
        device: torch.device,
        mesh: ProcessMesh | None = None,
        weights: WeightFiles | DrawnWeights | None = None,
        adapter: Adapter | None = None,
        layers: Layers = TRANSFORMERS,
        reader: PictureReader | None = None,
    ) -> None:
        """weights: what a model without memory is filled with; None where `load` comes next, or the model has some.
        adapter: what is trained in place of the model. layers: who computes those of the decoder. reader: of the
        pictures that prompts show, of a model that sees."""
        self.settings = settings
        self.device = device
        self.mesh = mesh or alone(device)
        self.parts = Parts.of(self.mesh)
        self._sharing = Sharing.of(self.mesh, key_heads(model.config))
        self.adapter = adapter
        if adapter is not None:
            adapter.put_beside(model, settings.adapter_dtype)
        # of all layers: a pipeline stage may have none with experts
        self._routing, num_routers = routing_of(model) if settings.follows_routes else None, len(routers(model))
        spread = layers.spread(model, self.parts)
        if adapter is None or not settings.trainable:
            model.requires_grad_(settings.trainable)
        self._reader, self._decision = reader, one_forward_of(model.config)
        words = action_words_of(model.config)
        self._first_word = 0 if words is None else words.first
        self._num_state_values = num_state_values(model.config)
        self._tower_is_frozen = freeze_tower(model, settings)
        apart = spread.experts, self.parts.expert_shards if spread.experts else None
        self.model = shard(model.eval(), settings, device, self.parts.shards, *apart, self.parts.replicas)
        self.layers, self._parts_of = layers, spread.parts_of
        self.parts = replace(self.parts, pipeline_stages=spread.pipeline_stages)
        self._pipeline = MicroBatchPipeline(self.mesh, model.config.get_text_config().hidden_size, settings.dtype)
        if weights is not None:
            weights.fill(self.model, self.parts.split, self._parts_of, is_pipeline_stage=self._pipeline.size > 1)
        if adapter is not None:
            draw_adapter(self.model, settings.seed, self.parts.split)
        self._kept = dict(self.model.named_parameters() if adapter is None else trained_parameters(self.model))
        self._held = is_held(self.model, settings)
        self.agreement = Agreement(self.mesh)
        self._balance = Balance.of(self.model, settings, device, num_routers)
        trained = {name: parameter for name, parameter in self._kept.items() if parameter.requires_grad}
        self.optimizer = ShardedOptimizer(trained, settings, self.parts) if settings.trainable else None

    @property
    def can_lend_weights(self) -> bool:
        """Whether a rollout engine may share the model: parameters are whole and all there is to it, and its layers are
        transformers' own, not compiled or others, which are for packed rows."""
        is_whole = self.parts.num_ranks == 1 and not self.settings.is_mixed and not self.settings.offload_parameters
        return is_whole and self.adapter is None and not self.settings.compile and self.layers is TRANSFORMERS

    def log_probs(self, batch: Batch) -> Column:
        def score(rows: MicroBatch) -> torch.Tensor:
            return response_log_probs(self.model, rows, self.settings.temperature).log_probs

        return self._score(batch, score)

    def last_layer(self, rows: MicroBatch) -> LastLayer | None:
        """Without gradients; None on all pipeline stages but the last. Its weight is gathered, and what goes to the
        next stage kept, until the caller calls `free_gathered_weights`."""
        with torch.no_grad():
            rows = self._pipeline.arrived(rows)
            if self._pipeline.is_last:
                return response_last_layer(self.model, rows)
            self._to_next_stage(rows)
        return None

    def free_gathered_weights(self) -> None:
        self._pipeline.settle()
        free_gathered_weights(self.model)

    def values(self, batch: Batch) -> Column:
        return self._score(batch, partial(values_of, self.model))

    def update(
        self, batch: Batch, objective: Objective, *, reference: ScoringEngine | None = None
    ) -> dict[str, Scalar]:
        assert self.optimizer is not None, "a model that is not trainable was asked to update"
        assert reference is None or isinstance(reference, ReferenceModel), "the reference is of another kind of engine"
        watch = Stopwatch()
        runs = self._micro_batches(batch, batch[TRAJECTORY_ID].values if TRAJECTORY_ID in objective.columns else None)
        self._balance.begin()
        with watch.phase("collectives"):
            num_runs, counts = self.agree_on_runs(len(runs), objective.counts(batch))
        if self._balance.coefficient and num_runs > 1:
            with watch.phase("forward"):
                self._forwards(batch, self._count_routes, counts=True)
            self._balance.settle(self.agreement)
        done: list[StepMicroBatch] = []
        for kind, index in pipeline_passes(self._pipeline.stage, self._pipeline.size, num_runs):
            last = index == num_runs - 1
            if kind == "forward":
                with watch.phase("forward"):
                    rows = runs[index] if index < len(runs) else None
                    done.append(self._forward(batch, rows, objective, counts, reference))
                if last:
                    self._balance.settle(self.agreement)
            else:
                self._pass_of(done[index].rows, counts=False)
                hold_gradients(self.model, held=self._held, last=last, keep_weights=self.device.type == "cpu")
                with watch.phase("backward"):
                    done[index].backward(self._pipeline)
        self._tell(done, batch, objective, counts)
        self._follow(None)
        if reference is not None:
            reference.free_gathered_weights()
        learning_rate = self.optimizer.learning_rate
        with watch.phase("optimizer"):
            norm, stepped = self.optimizer.step(self.agreement)
        copies = self.mesh.mesh.dp
        own = {
            # the objective is the sum over copies: each counts as 1/copies of one mini-batch
            "update/loss": mean(total_loss(done), 1 / copies),
            "update/gradient_norm": mean(norm),
            "update/learning_rate": mean(learning_rate),
            "update/micro_batches": mean(num_runs),
            "update/skipped_total": total(0.0 if stepped else 1.0 / copies),
            **{f"time/{phase}_seconds": mean(seconds) for phase, seconds in watch.seconds.items()},
        }
        return {**merge_all(read_all([run.metrics for run in done])), **own, **self._balance.end(self.agreement)}

    def read_ahead(self, batch: Batch) -> None:
        if self._reader is not None:
            self._reader.read_ahead(batch, np.arange(len(batch)), most_patches=PATCHES_AHEAD)

    def weights(
        self, dtype: torch.dtype | None = None, *, bucket_bytes: int = BUCKET_BYTES, trained_only: bool = False
    ) -> Iterator[tuple[str, torch.Tensor]]:
        if dtype is None and self.parts.num_ranks > 1:
            dtype = DTYPES[self.settings.precision]
        merged = self._merged(trained_only=trained_only)
        return checkpoint_tensors(full_tensors(merged, self.parts, dtype, bucket_bytes), self._parts_of)

    def weight_buckets(
        self,
        sources: Sequence[int],
        dtype: torch.dtype | None = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        trained_only: bool = False,
    ) -> Iterator[Iterable[tuple[str, torch.Tensor]]]:
        dtype = dtype or DTYPES[self.settings.precision]
        merged = self._merged(trained_only=trained_only)
        buckets = buckets_at(merged, self.parts, sources, dtype, bucket_bytes)
        return (checkpoint_tensors(bucket, self._parts_of) for bucket in buckets)

    def _merged(self, *, trained_only: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of the model; trained_only: none of a frozen tower."""
        merged = merged_tensors(self.model, self.parts)
        if not (trained_only and self._tower_is_frozen):
            return merged
        return ((name, tensor) for name, tensor in merged if not is_of_tower(name))

    def copy_shards(self) -> Shards:
        return sharded.CopiedShards.of(self._state(), self.parts, self.adapter)

    def load(self, directory: StoragePath, *, weights_only: bool = False) -> None:
        state = self._state()
        if weights_only:
            state.pop("optimizer", None)
        sharded.read(state, directory, self.adapter, is_pipeline_stage=self._pipeline.size > 1)
        if self.optimizer is not None and not weights_only:
            self.optimizer.set_num_steps(int(state["optimizer"]["num_steps"]))

    def held_bytes(self) -> int:
        return 0 if self.optimizer is None else self.optimizer.held_bytes

    def sleep(self) -> None:
        if self.optimizer is not None:
            self.optimizer.sleep()
            give_back(self.device)

    def _state(self) -> sharded.State:
        model = {name: self.parts.placed(name, parameter.detach()) for name, parameter in self._kept.items()}
        return {"model": model, "optimizer": self.optimizer.state()} if self.optimizer else {"model": model}

    def _micro_batches(self, batch: Batch, together: np.ndarray | None = None) -> list[np.ndarray]:
        num_tokens = batch.lengths("prompt_ids") + batch.lengths("response_ids")
        rows, reader = np.arange(len(batch)), self._reader
        prompts = batch.column_of("prompt_ids", rows)
        shared = None
        if self._decision is None:  # else the prompts of rows differ in what no token says, and share nothing
            shared = shared_prompts(prompts, None if reader is None else reader.identities(batch, rows))
        patches = None
        if reader is not None and (most := self.settings.patches_per_micro_batch) is not None:
            own = reader.num_patches(batch["response_ids"]) if has_own_pictures(batch) else None
            patches = PatchBudget(reader.num_patches(prompts), most, own)
        budget = self.settings.tokens_per_micro_batch * self.mesh.mesh.cp
        return micro_batches(num_tokens, budget, shared, together, patches)

    def _rows(self, batch: Batch, rows: np.ndarray) -> MicroBatch:
        if self._reader is None:
            require_no_pictures(batch, type(self.model).__name__)
        else:  # what comes next is decoded while these are computed
            self._reader.read_ahead(batch, np.arange(rows[0], min(int(rows[-1]) + 1 + len(rows), len(batch))))
        follows = self.settings.follows_routes
        return MicroBatch.of(
            batch,
            rows,
            self.device,
            self._sharing,
            with_routes=follows,
            reader=self._reader,
            decision=self._decision,
            num_state_values=self._num_state_values,
        )

    def _placeholder(self) -> MicroBatch:
        return MicroBatch.build(placeholder(self._first_word), self.device, self._sharing)

    def agree_on_runs(self, num_runs: int, counts: dict[str, float]) -> tuple[int, dict[str, float]]:
        """Most micro-batches of any copy, and the counts summed over copies, in one exchange."""
        everyone = self.agreement.gather([num_runs, *counts.values()])
        sums = everyone[:, 1:].sum(0).tolist()
        # a mini-batch without any row still steps, on zero gradients, so that ranks and schedules stay together
        return max(1, int(everyone[:, 0].max())), dict(zip(counts, sums, strict=True))

    def _score(self, batch: Batch, score: Callable[[MicroBatch], torch.Tensor]) -> Column:
        """One float32 per response token."""
        lengths = batch["response_ids"].lengths
        scores = [torch.empty(0 if self._pipeline.is_last else int(lengths.sum()), device=self.device)]

        def keep(rows: MicroBatch) -> None:
            result = score(rows)
            if rows.num_rows:
                scores.append(result.float())  # nothing waits for the device before all passes are under way

        self._forwards(batch, keep)
        values = self._pipeline.from_last(torch.cat(scores)).cpu().numpy()
        return Column.from_lengths(values, lengths)

    def _forwards(self, batch: Batch, forward: Callable[[MicroBatch], None], *, counts: bool = False) -> None:
        """Each micro-batch in turn, without gradients; placeholders have no rows. counts: the load of experts."""
        runs = self._micro_batches(batch)
        with torch.no_grad():
            for index in range(self.agreement.maximum(len(runs))):
                rows = self._rows(batch, runs[index]) if index < len(runs) else None
                rows = self._pipeline.arrived(rows if rows is not None and rows.row.numel() else self._placeholder())
                self._follow(rows.routes)
                if counts:
                    self._balance.watch(rows, counts=True)
                if self._pipeline.is_last:
                    forward(rows)
                else:
                    self._to_next_stage(rows)
        self._pipeline.settle()
        self._follow(None)
        free_gathered_weights(self.model)

    def _follow(self, routes: torch.Tensor | None) -> None:
        """What generates may compute with the same model, and chooses."""
        if self._routing is not None:
            self._routing.follow(routes)

    def _pass_of(self, rows: MicroBatch | None, *, counts: bool) -> None:
        """What follows is of these rows: other stages, and a backward pass, are at others than the last forward pass
        was. counts: a forward pass."""
        assert rows is not None, "a pass behind the last one"
        self._follow(rows.routes)
        self._balance.watch(rows, counts=counts)

    def _count_routes(self, rows: MicroBatch) -> None:
        if isinstance(self.model, ValueModel):
            values_of(self.model, rows)
        else:
            response_last_layer(self.model, rows)

    def _forward(
        self,
        batch: Batch,
        indices: np.ndarray | None,
        objective: Objective,
        counts: dict[str, float],
        reference: ReferenceModel | None,
    ) -> StepMicroBatch:
        """A forward pass of some rows, or of a placeholder that lets every collective run."""
        rows = None if indices is None else self._rows(batch, indices)
        if rows is None or not rows.row.numel():
            rows, indices = self._placeholder(), None
        # before anything else arrives: both models have one way to the next stage
        compared = compared_with(reference, rows, objective.outputs)
        rows = self._pipeline.arrived(rows)
        self._pass_of(rows, counts=True)
        if not self._pipeline.is_last:
            return StepMicroBatch(rows, indices, self._to_next_stage(rows))
        result = outputs(self.model, rows, objective.outputs, self.settings.temperature, compared)
        if indices is None:
            return StepMicroBatch(rows, None, result.zero())
        run = StepMicroBatch(rows, indices, None, result)
        run.end = run.judge(batch, objective, counts)
        return run

    def _to_next_stage(self, rows: MicroBatch) -> torch.Tensor:
        hidden: torch.Tensor = self.model(**rows.inputs)
        self._pipeline.send(hidden)
        return hidden

    def _tell(self, runs: list[StepMicroBatch], batch: Batch, objective: Objective, counts: dict[str, float]) -> None:
        """What an update learned, to the stages that have not seen what came out of the last one."""
        self._pipeline.settle()
        dtype = torch.promote_types(self.settings.dtype, torch.float32)
        kinds = output_kinds(objective.outputs, is_critic=isinstance(self.model, ValueModel))
        with torch.no_grad():
            broadcast_outputs(runs, kinds, dtype, self._pipeline)
            for run in runs:
                if run.loss is None and run.outputs is not None:
                    run.judge(batch, objective, counts)
