"""Memory of a model that lies on its ranks, whether it is trained or scored.

With P parameters over R ranks of a replica, b bytes of a stored number (4; 8 in Float64) and c of a computed one:

    weights      P b / R kept (experts that ranks share over those that split matrices, too), and what is gathered to
                 compute with: nothing on one rank that computes in what it stores; all P c where the model stays whole
                 between micro-batches (on CPUs, up to HELD_BYTES); else the part besides the layers and three units of
                 layers, one at work, one that is fetched, one on its way; of experts a rank's own
    optimizer    s P b / R: s states of every weight, two with AdamW; as gradients, of an adapter alone where there is
                 one. In BFloat16 2 bytes in place of b; in Int8 1, and 4 more for every block of them
    checkpoint   (1 + s) P b / R: a copy of weights and optimizer, until it is written; each replica writes a part of it
    host         what is offloaded leaves the accelerator. The optimizer: s P b / R, which come back a bucket at a time.
                 Parameters: weights and gradients as well, P b / R each; gradients on their way, and what adds up
                 before it is reduced, stay
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rljob_api.memory.model_shape import ModelShape
from rljob_api.memory.sizes import BUCKET_BYTES, HELD_BYTES, LOGITS_ELEMENTS, MIN_UNIT_BYTES
from rljob_api.v1alpha1 import OffloadSpec

_MEAN_STATE_BLOCK = 128
"""Numbers of an optimizer in Int8 that share a scale: a third of a model's weights are matrices whose columns ranks may
split, which have the least blocks."""


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """How one model lies on its ranks."""

    shape: ModelShape
    ranks: int
    stored: int
    """Bytes of a number as it is kept."""
    computed: int
    """Bytes of a number as it is computed with."""
    on_cpu: bool
    held_bytes: int = HELD_BYTES
    logits_elements: int = LOGITS_ELEMENTS
    """Logits in memory at once."""
    expert_ranks: int = 1
    """Ranks that share the experts of a layer."""
    tensor: int = 1
    """Ranks that split its matrices, which is done to `shape`; experts that are shared lie over them, too. Outside of
    matrices each has a part of the tokens."""
    adapter: int = 0
    """Parameters of an adapter, of at least four bytes each, which is then all that is trained."""
    offload: OffloadSpec = OffloadSpec()
    """What waits in the memory of the host."""
    states: str = "Float32"
    """Number format of the optimizer, as the job has it."""
    num_states: int = 2
    """Numbers that the optimizer keeps of every weight."""
    ring: bool = False
    """Whether keys and values go round the ranks that share sequences."""
    replicas: int = 1
    """Number of copies of the shards among the ranks."""
    fuses_norms: bool = False
    """Whether a norm in two bytes is one kernel, as on CUDA, which keeps what it norms and nothing in four bytes."""

    compares_logits: bool = False
    """Whether whole distributions are compared with a reference's, or logits are capped."""

    @property
    def shard(self) -> int:
        """Bytes of this rank's part of the weights, wherever it is."""
        return self._own * self.stored + ceil(self.adapter / self.ranks) * max(self.stored, 4)

    @property
    def _own(self) -> int:
        """Parameters of this rank's shard."""
        experts = self.shape.all_experts if self.expert_ranks > 1 else 0
        return ceil((self.shape.parameters - experts) / self.ranks) + ceil(experts / (self.ranks * self.tensor))

    @property
    def repeats_key_heads(self) -> bool:
        """Whether attention repeats key heads for each query head that asks one."""
        return not self.on_cpu and self.computed == 4 and not self.ring

    @property
    def trained(self) -> int:
        """Bytes of what is trained, over all ranks."""
        return self.adapter * max(self.stored, 4) if self.adapter else self.whole

    @property
    def optimizer(self) -> int:
        """Bytes of this rank's part of the optimizer's states, wherever they are."""
        if self.states == "Float32":
            return self.num_states * self.own_trained
        numbers = ceil(self.adapter / self.ranks) if self.adapter else self._own
        one = 2 * numbers if self.states == "BFloat16" else numbers + ceil(4 * numbers / _MEAN_STATE_BLOCK)
        return self.num_states * one

    @property
    def kept(self) -> int:
        """Bytes of the weights that stay on the device."""
        return 0 if self.offload.parameters else self.shard

    @property
    def optimizer_kept(self) -> int:
        """Bytes of the optimizer states that stay on the device."""
        return 0 if self.offload.optimizer else self.optimizer

    @property
    def stepped(self) -> int:
        """Bytes of the optimizer's states that come back at once for an optimizer step."""
        if self.offload.parameters or not self.offload.optimizer:
            return 0
        largest = ceil(self.shape.largest_tensor / self.ranks) * self.stored
        bucket = max(BUCKET_BYTES, largest)
        return min(self.optimizer, ceil(self.optimizer * bucket / self.own_trained))

    def host(self, *, trainable: bool) -> int:
        """Bytes that wait in the memory of the host."""
        optimizer = self.optimizer - self.optimizer_kept if trainable else 0
        return self.shard - self.kept + optimizer

    @property
    def host_gradients(self) -> int:
        """Bytes of gradients that go there in an update of it, and are stepped with."""
        return self.own_trained if self.offload.parameters else 0

    @property
    def checkpoint(self) -> int:
        """Bytes of this rank's part of a checkpoint: what is trained, and its optimizer; replicas take turns."""
        return ceil((self.own_trained + self.optimizer) / self.replicas)

    @property
    def own_trained(self) -> int:
        """Bytes of this rank's part of what is trained."""
        return ceil(self.trained / self.ranks) if self.adapter else self._own * self.stored

    @property
    def whole(self) -> int:
        return self.shape.parameters * self.stored

    @property
    def tokens_of_chunk(self) -> int:
        """Tokens whose logits are computed at once."""
        return max(1, self.logits_elements // self.shape.vocabulary)

    @property
    def is_whole(self) -> bool:
        """Whether the rank has all weights as they are computed with; an adapter is kept in at least four bytes."""
        stored = max(self.stored, 4) if self.adapter else self.stored
        return self.ranks * self.replicas == 1 and stored == self.computed and not self.offload.parameters

    @property
    def parameters_here(self) -> int:
        """Parameters that the rank has gathered at most: all but other ranks' experts."""
        return self.shape.parameters - self.shape.all_experts * (self.expert_ranks - 1) // self.expert_ranks

    @property
    def is_held(self) -> bool:
        return self.parameters_here * self.stored <= self.held_bytes

    @property
    def unit(self) -> int:
        """Parameters that are gathered together."""
        return self.layers_of_unit * self._layer_here

    @property
    def layers_of_unit(self) -> int:
        """How many layers are gathered together; none where all of the model is."""
        if self.parameters_here * self.stored < MIN_UNIT_BYTES:
            return 0
        return min(ceil(MIN_UNIT_BYTES / (self._layer_here * self.stored)), self.shape.layers)

    @property
    def _layer_here(self) -> int:
        """Parameters of a layer without other ranks' experts."""
        return self.shape.layer - self.shape.layer_experts * (self.expert_ranks - 1) // self.expert_ranks

    @property
    def root(self) -> int:
        """Parameters that stay gathered."""
        return self.shape.rest if self.unit else self.parameters_here

    @property
    def gathered(self) -> int:
        """Bytes of weights to compute with, besides the shard."""
        if self.is_whole:
            return 0
        if self.on_cpu and self.is_held:
            return self.parameters_here * self.computed
        return (self.root + 3 * self.unit) * self.computed
