"""Does an engine compute with the weights that it was given last?

Reloading in place is silently wrong where `weights` does not help it: of a mixture of experts on the CPU, log-probs
moved by 5; of tied embeddings the last layer kept the old ones. So an engine starts with random weights, gets the
policy as every later one, and must then agree with transformers, or it is refused: in the first token of random
prompts, as many as send tokens to all experts, and in the last token of a response with itself, which computes it once
behind the others and once as the end of a prompt.

What transformers says takes one forward pass, which is made layer by layer while weights go to the engine.
"""

from __future__ import annotations

import io
import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.log_probs.token_log_probs import log_distribution
from rljob_worker.engines.micro_batch import MicroBatch, response_last_layer
from rljob_worker.engines.packing import pack
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.prompt_pictures import RowPictures
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import EndedRequests, Requests, Sampling
from rljob_worker.engines.router import Recording, routers, routing_of
from rljob_worker.errors import InvalidJob
from rljob_worker.vision.pictures import PictureList

log = logging.getLogger(__name__)

_PROMPT, _RESPONSE = 8, 16
_ROWS = 16
"""Prompts, at least."""
_VISITS = 64
"""Tokens for each expert of a layer, if all were as likely: of those that are ten times less so, two in a thousand get
none."""
_FEATURES = 3
"""As many make a side of the picture."""
_NOT_TEXT = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_MAY_DIFFER = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean difference of log-probs in each precision: rounding is ten times less, old weights ten times more."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What both are asked."""

    prompts: Column
    """Ragged int64: token ids."""
    pictures: Column | None = None
    """Binary: a `PictureList` for each."""
    not_text: tuple[int, ...] = ()
    """Tokens that stand for pictures, which no prompt has without one."""

    @staticmethod
    def of(config: PretrainedConfig, longest_row: int, reader: PictureReader | None) -> Probe:
        """Random tokens, and in the first prompt a picture where the engine is to be shown some and there is room for
        one."""
        draw, decoder = np.random.default_rng(0), config.get_text_config()
        not_text = tuple(token for name in _NOT_TEXT if (token := getattr(config, name, None)) is not None)
        words = np.setdiff1d(np.arange(decoder.vocab_size), not_text)
        length = max(1, min(_PROMPT, longest_row // 2))
        prompts = list(draw.choice(words, size=(_num_prompts(decoder, length), length)))
        if reader is None:
            return Probe(Column.ragged(prompts), not_text=not_text)
        picture, num_tokens = _random_picture(config.vision_config, reader, draw)
        shown = [config.vision_start_token_id, *[reader.picture_token] * num_tokens, config.vision_end_token_id]
        longer = np.concatenate([prompts[0][:1], shown, prompts[0][1:]]).astype(np.int64)
        if 2 * len(longer) > longest_row:
            return Probe(Column.ragged(prompts), not_text=not_text)
        lists = [PictureList.pack([picture]), *[PictureList.pack([])] * (len(prompts) - 1)]
        return Probe(Column.ragged([longer, *prompts[1:]]), Column.binary(lists), not_text)

    def requests(self, most_tokens: int, longest_row: int) -> Requests:
        """The likeliest tokens behind each prompt."""
        rows = np.arange(self.prompts.num_rows)
        return Requests(
            row_ids=rows,
            turns=np.zeros(len(rows), np.int64),
            prompts=self.prompts,
            prompt_of=rows,
            max_tokens=np.minimum(most_tokens, longest_row - self.prompts.lengths),
            samplings=(Sampling(temperature=0),),
            pictures=self.pictures,
        )

    def behind(self, responses: Column) -> tuple[Probe, Indices]:
        """The probe whose prompts go on with responses up to their last token, or to the first that is no text; and
        int64 [prompts] the place of that in its response."""
        prompts, places = [], []
        for prompt, response in zip(self.prompts.to_list(), responses.to_list(), strict=True):
            ends = np.flatnonzero(np.isin(response[:-1], self.not_text))
            places.append(int(ends[0]) if len(ends) else len(response) - 1)
            prompts.append(np.concatenate([prompt, response[: places[-1]]]))
        return replace(self, prompts=Column.ragged(prompts)), np.array(places)


class ReferenceAnswer:
    """What a model says of the first token behind each prompt of a probe. Called with the model, as often as it takes
    to compute all of its layers."""

    def __init__(self, probe: Probe, reader: PictureReader | None = None) -> None:
        self._probe, self._reader = probe, reader
        self._num_visited = 0

    def __call__(self, model: PreTrainedModel) -> torch.Tensor:
        """Log-probs of all words: float32 [prompts, vocabulary]."""
        router_layers = routers(model)
        with routing_of(model).recording() if router_layers else nullcontext() as recording:
            try:
                result = self._log_probs(model)
            finally:
                self._note_visits(recording)
        num_experts = sum(router.num_experts for router in router_layers)
        if self._num_visited < num_experts:
            log.warning(
                "the reload check says nothing of %d of %d experts of %s, to which no token of its probe went",
                num_experts - self._num_visited,
                num_experts,
                type(model).__name__,
            )
        return result

    def _log_probs(self, model: PreTrainedModel) -> torch.Tensor:
        prompts, reader = self._probe.prompts, self._reader
        first = Column.ragged([np.zeros(1, np.int64)] * prompts.num_rows)  # any: what is asked is the distribution
        pictures = None
        if reader is not None:
            tokens, blobs = prompts.to_list(), self._probe.pictures
            lists = [PictureList.pack([])] * len(tokens) if blobs is None else blobs.to_list()
            shown = [reader.prompt_pictures(*pair, row) for row, pair in enumerate(zip(tokens, lists, strict=True))]
            pictures = RowPictures(np.arange(len(tokens)), shown.__getitem__)
        rows = MicroBatch.build(pack(prompts, first, pictures=pictures), torch.device("cpu"))
        with torch.inference_mode():
            return log_distribution(response_last_layer(model, rows).logits(slice(None)), 1.0)

    def _note_visits(self, recording: Recording | None) -> None:
        self._num_visited += sum(len(item.unique()) for item in recording.chosen) if recording is not None else 0


def require_faithful(
    engine: RolloutEngine, model: PreTrainedModel, dtype: str, longest_row: int, reader: PictureReader | None = None
) -> None:
    """Compare an engine with a whole model, whose weights it was given. reader: of what the engine is shown. Raises
    InvalidJob."""
    probe = Probe.of(model.config, longest_row, reader)
    expected = ReferenceAnswer(probe, reader)(model)
    require_near(difference_from(engine, probe, longest_row, expected), dtype, type(model).__name__)


def difference_from(engine: RolloutEngine, probe: Probe, longest_row: int, expected: torch.Tensor | None) -> float:
    """How far an engine's log-probs are from those that are expected, and from its own of the same tokens computed
    otherwise; the larger one of two means. expected: as `ReferenceAnswer` says them; None: of another rank."""
    tokens, log_probs = _answers(engine, probe.requests(_RESPONSE, longest_row))
    longer, places = probe.behind(tokens)
    _, again = _answers(engine, longer.requests(1, longest_row))
    firsts = np.cumsum(log_probs.lengths) - log_probs.lengths
    itself = float(np.abs(again.values - log_probs.values[firsts + places]).mean())
    if expected is None:
        return itself
    wanted = expected.float().cpu().numpy()[np.arange(len(firsts)), tokens.values[firsts]]
    return max(itself, float(np.abs(log_probs.values[firsts] - wanted).mean()))


def require_near(difference: float, dtype: str, class_name: str) -> None:
    """Raises InvalidJob for more than rounding."""
    if not difference <= _MAY_DIFFER[dtype]:
        raise InvalidJob(
            f"vLLM does not compute {class_name} with the weights that it was given: log-probs of a probe "
            f"differ by {difference:.3g} from those of transformers, where {_MAY_DIFFER[dtype]:.3g} are "
            "rounding; write rollout.engine: Transformers"
        )


def _answers(engine: RolloutEngine, requests: Requests) -> tuple[Column, Column]:
    """Tokens and their log-probs, in the order of the requests."""
    engine.submit(requests)
    parts: list[EndedRequests] = []
    while sum(len(part) for part in parts) < len(requests):
        parts.append(engine.advance())
    order = np.argsort(np.concatenate([part.row_ids for part in parts]))
    tokens, log_probs = ([getattr(part, name) for part in parts] for name in ("response_ids", "log_probs"))
    return Column.concat(tokens).take(order), Column.concat(log_probs).take(order)


def _num_prompts(decoder: PretrainedConfig, length: int) -> int:
    num_experts = getattr(decoder, "num_experts", None) or getattr(decoder, "num_local_experts", None) or 0
    num_tokens = _VISITS * num_experts // (getattr(decoder, "num_experts_per_tok", None) or 1)
    return max(_ROWS, -(-num_tokens // length))


def _random_picture(tower: PretrainedConfig, reader: PictureReader, draw: np.random.Generator) -> tuple[bytes, int]:
    """A PNG of a few patches, and how many tokens it has."""
    from PIL import Image

    side = _FEATURES * int(tower.patch_size * tower.spatial_merge_size)
    colours, file = draw.integers(0, 256, (side, side, 3)).astype(np.uint8), io.BytesIO()
    Image.fromarray(colours).save(file, "PNG")
    return file.getvalue(), reader.processor.shape(file.getvalue()).num_tokens
