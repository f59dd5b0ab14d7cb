"""Places for pictures in prompts: from `<image>` and parts of messages to the tokens that stand for a picture.

"<image> What is it?"
[{"type": "image"}, {"type": "text", "text": " What is it?"}]          both become the text
"<|vision_start|><|image_pad|><|vision_end|> What is it?"              whose pad token is repeated: once for each
                                                                       merged patch of the picture
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.checkpoint_files import PictureTokens

PLACE = "<image>"
"""What a prompt says where a picture belongs."""


class PicturePlaces:
    """Writes and counts the places of pictures, with the tokens of a model."""

    def __init__(self, tokenizer: Any, tokens: PictureTokens) -> None:
        """Raises InvalidJob for a tokenizer that does not have the tokens of the model's pictures."""
        self._pad = tokens.pad
        ids = [tokens.start, tokens.pad, tokens.end]
        texts = [tokenizer.backend_tokenizer.id_to_token(token_id) for token_id in ids]
        self.text = "".join(text or "" for text in texts)
        encoded = tokenizer([self.text], add_special_tokens=False, return_attention_mask=False, verbose=False)
        if list(encoded["input_ids"][0]) != ids:
            raise InvalidJob(
                f"the tokenizer of {tokenizer.name_or_path!r} does not have the tokens {ids} that its config.json "
                "names for pictures as special tokens; take the tokenizer that came with the model"
            )

    def in_text(self, text: str) -> str:
        """A text with its places written in tokens of the model."""
        return text.replace(PLACE, self.text)

    def in_content(self, content: Any, where: str) -> Any:
        """The content of a message as one text; what is neither text nor parts is returned as it is."""
        if isinstance(content, str):
            return self.in_text(content)
        if not isinstance(content, list):
            return content
        return "".join(self._part(part, where) for part in content)

    def _part(self, part: Any, where: str) -> str:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            return self.in_text(part["text"])
        if kind not in ("image", "image_url"):
            raise BadData(
                f"{where}: a part of a message has the type {kind!r}; write text or image, and pictures into the "
                "column that data.imagesColumn names"
            )
        if any(part.get(name) is not None for name in ("image", "image_url", "url", "path", "base64")):
            raise BadData(
                f"{where}: a part of a message holds a picture itself; write it into the column that data.imagesColumn "
                "names, and a part {type: image} in its place"
            )
        return self.text

    def expand(self, tokens: NDArray[np.int64], num_tokens: Sequence[int], where: str) -> NDArray[np.int64]:
        """Token ids with the pad token of every place repeated. num_tokens: of each picture of the row, in order.

        Raises BadData where a prompt has more or fewer places than the row has pictures.
        """
        places = np.flatnonzero(tokens == self._pad)
        if len(places) != len(num_tokens):
            raise BadData(
                f"{where}: the prompt has {len(places)} places for pictures, and the row {len(num_tokens)} pictures; "
                f"write {PLACE} in the prompt once for each"
            )
        repeats = np.ones(len(tokens), np.int64)
        repeats[places] = num_tokens
        return np.repeat(tokens, repeats)
