"""Does an engine compute with the weights that it was given last?

Reloading in place is silently wrong where `weights` does not help it: of a mixture of experts on the CPU, log-probs
moved by 5; of tied embeddings the last layer kept the old ones. So an engine starts with random
weights, gets the policy as every later one, and must then agree with transformers, or it is refused.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.micro_batch import MicroBatch, response_log_probs
from rljob_worker.engines.packing import pack
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.prompt_pictures import RowPictures
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.errors import InvalidJob
from rljob_worker.vision.pictures import PictureList

_PROMPT, _RESPONSE = 8, 16
_FEATURES = 3
"""As many make a side of the picture."""
_NOT_TEXT = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_MAY_DIFFER = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean difference of log-probs in each precision: rounding is ten times less, old weights ten times more."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What both are asked."""

    prompt: Indices
    pictures: bytes = b""
    """A `PictureList`."""

    @staticmethod
    def of(config: PretrainedConfig, longest_row: int, reader: PictureReader | None) -> Probe:
        """Random tokens, and between them a picture where the engine is to be shown some and there is room for one."""
        draw, decoder = np.random.default_rng(0), config.get_text_config()
        special = [token for name in _NOT_TEXT if (token := getattr(config, name, None)) is not None]
        words = np.setdiff1d(np.arange(decoder.vocab_size), special)
        prompt = draw.choice(words, size=min(_PROMPT, longest_row // 2))
        if reader is None:
            return Probe(prompt)
        picture, num_tokens = _random_picture(config.vision_config, reader, draw)
        shown = [config.vision_start_token_id, *[reader.picture_token] * num_tokens, config.vision_end_token_id]
        longer = np.concatenate([prompt[:1], shown, prompt[1:]]).astype(np.int64)
        return Probe(longer, PictureList.pack([picture])) if 2 * len(longer) <= longest_row else Probe(prompt)

    def requests(self, max_tokens: int) -> Requests:
        return Requests(
            row_ids=np.zeros(1, np.int64),
            turns=np.zeros(1, np.int64),
            prompts=Column.ragged([self.prompt]),
            prompt_of=np.zeros(1, np.int64),
            max_tokens=np.array([max_tokens]),
            samplings=(Sampling(temperature=0),),
            pictures=Column.binary([self.pictures]) if self.pictures else None,
        )

    def log_probs(self, model: PreTrainedModel, response: Column, reader: PictureReader | None) -> np.ndarray:
        """As the model computes those of the response: float32 [response]."""
        pictures = None
        if reader is not None:
            shown = reader.prompt_pictures(self.prompt, self.pictures, 0)
            pictures = RowPictures(np.zeros(1, np.int64), lambda row: shown)
        rows = MicroBatch.build(pack(Column.ragged([self.prompt]), response, pictures=pictures), model.device)
        with torch.inference_mode():
            log_probs = response_log_probs(model, rows, temperature=1.0).log_probs
        on_host: np.ndarray = log_probs.float().cpu().numpy()
        return on_host


def require_faithful(
    engine: RolloutEngine, model: PreTrainedModel, dtype: str, longest_row: int, reader: PictureReader | None = None
) -> None:
    """Compare the log-probs of one greedy response with the model's, whose weights the engine was given. reader: of
    what the engine is shown. Raises InvalidJob."""
    probe = Probe.of(model.config, longest_row, reader)
    engine.submit(probe.requests(min(_RESPONSE, longest_row - len(probe.prompt))))
    ended = engine.advance()
    expected = probe.log_probs(model, ended.response_ids, reader)
    difference = float(np.abs(ended.log_probs.values - expected).mean())
    if not difference <= _MAY_DIFFER[dtype]:
        raise InvalidJob(
            f"vLLM does not compute {type(model).__name__} with the weights that it was given: log-probs of a probe "
            f"differ by {difference:.3g} from those of transformers, where {_MAY_DIFFER[dtype]:.3g} are "
            "rounding; write rollout.engine: Transformers"
        )


def _random_picture(tower: PretrainedConfig, reader: PictureReader, draw: np.random.Generator) -> tuple[bytes, int]:
    """A PNG of a few patches, and how many tokens it has."""
    from PIL import Image

    side = _FEATURES * int(tower.patch_size * tower.spatial_merge_size)
    colours, file = draw.integers(0, 256, (side, side, 3)).astype(np.uint8), io.BytesIO()
    Image.fromarray(colours).save(file, "PNG")
    return file.getvalue(), reader.processor.shape(file.getvalue()).num_tokens
