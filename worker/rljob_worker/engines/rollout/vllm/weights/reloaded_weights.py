"""The weights of one vLLM engine: a policy that arrives tensor by tensor, and what of it is kept for the next one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from vllm.v1.engine.llm_engine import LLMEngine

from rljob_api.memory.weight_slices import WeightSlices
from rljob_worker.engines.arriving_policy import whole_policy
from rljob_worker.engines.rollout.vllm.weights.kept_slice import KeptSlice, kept_shapes
from rljob_worker.engines.rollout.vllm.weights.layouts import forget_expert_kernels, refresh_tied
from rljob_worker.engines.rollout.vllm.weights.recorded_copies import CopyRecorder, RecordedCopies

log = logging.getLogger(__name__)


class ReloadedWeights:
    """parameters: names and shapes of the policy, tied names sharing a tensor; their values are never read. slices: how
    the ranks of a copy share the tensors of a checkpoint; of each `rank` is given what it keeps. frozen: of which
    parameters new weights need not come, since nobody trains them."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        slices: WeightSlices,
        rank: int,
        frozen: Callable[[str], bool],
    ) -> None:
        self._parameters, self._num_ranks = parameters, slices.tensor
        self._parts = {name: slices.part(name, whole.shape, rank) for name, whole in parameters.items()}
        self._kept = kept_shapes(parameters, self._parts)
        self._frozen, self._frozen_weights = frozen, dict[str, torch.Tensor]()
        self.copies: RecordedCopies | None = None
        """What is done with every policy but the first; None: the first has not come, or more than copies is needed."""
        self._has_loaded = False

    @property
    def nbytes(self) -> int:
        """Bytes that this rank has of them."""
        return int(sum(parameter.nbytes for parameter in self._parameters.values())) // self._num_ranks

    def load(
        self, engine: LLMEngine, weights: Iterable[tuple[str, torch.Tensor]], version: int, *, lasting: bool
    ) -> None:
        """Fill the layers of an engine with what comes: by copies where the first policy showed that they do, else by
        vLLM's loaders. lasting: as in `RolloutEngine.load_weights`. Raises InvalidJob as that does."""
        if self.copies is not None:
            self.copies.make(self._arriving(weights, version), lasting=lasting)
        elif self._has_loaded:
            self._reload(engine, self._arriving(weights, version), lasting=lasting)
        else:
            self.copies, self._has_loaded = self._record(engine, self._arriving(weights, version)), True

    def _record(self, engine: LLMEngine, arriving: Iterable[tuple[str, torch.Tensor]]) -> RecordedCopies | None:
        """By vLLM's loaders; what they do."""
        recorder: CopyRecorder
        (recorder,) = engine.apply_model(CopyRecorder)

        def noted() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in arriving:
                own = tensor.clone(memory_format=torch.contiguous_format)
                recorder.came(name, own)
                yield name, own

        with recorder:
            self._reload(engine, noted(), lasting=True)
        result = recorder.copies()
        log.info(
            "later policies %s", "go through vLLM's loaders" if result is None else "are copied past vLLM's loaders"
        )
        return result

    def _reload(self, engine: LLMEngine, arriving: Iterable[tuple[str, torch.Tensor]], *, lasting: bool) -> None:
        """By vLLM's loaders. Each tensor is in memory of its own unless it lasts: vLLM fills a layer once all of its
        tensors have come, and by then those that came first are others'."""
        engine.apply_model(forget_expert_kernels)
        whole = ((name, self._in_whole(name, tensor if lasting else tensor.clone())) for name, tensor in arriving)
        engine.collective_rpc("reload_weights", kwargs={"weights_iterator": whole})
        engine.apply_model(refresh_tied)

    def _arriving(
        self, weights: Iterable[tuple[str, torch.Tensor]], version: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of the policy: what does not come is what came last."""
        rest = dict(self._frozen_weights)
        for name, item in whole_policy(self._kept, weights, version, self._frozen_weights.__contains__):
            tensor = item.to(self._kept[name].dtype)
            rest.pop(name, None)
            if self._frozen(name):
                self._frozen_weights[name] = tensor.to("cpu", copy=True)
            yield name, tensor
        yield from rest.items()

    def _in_whole(self, name: str, tensor: torch.Tensor) -> torch.Tensor | KeptSlice:
        """What this rank keeps of a tensor, for loaders that take it out of the whole."""
        part = self._parts[name]
        return tensor if part.spans is None else KeptSlice.of(tensor, part, self._parameters[name].shape)
