"""Places for pictures and videos in prompts: from `<image>`, `<video>` and parts of messages to the tokens that stand
for what is shown there.

"<image> What is it?"
[{"type": "image"}, {"type": "text", "text": " What is it?"}]          both become the text
"<|vision_start|><|image_pad|><|vision_end|> What is it?"              whose pad token is repeated: once for each
                                                                       merged patch of the picture
"<video> What is it?"
"<|vision_start|><|video_pad|><|vision_end|> What is it?"              likewise, for Qwen2.5-VL
"<0.2 seconds><|vision_start|><|video_pad|><|vision_end|><1.2 seconds><|vision_start|>..."   for Qwen3-VL, each patch of
                                                                       frames behind its time
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.checkpoint_files import PictureTokens
from rljob_worker.vision.processing import PictureShape

PLACE, VIDEO_PLACE = "<image>", "<video>"
"""What a prompt says where a picture or a video belongs."""


class PicturePlaces:
    """Writes and counts the places of pictures and videos, with the tokens of a model."""

    def __init__(self, tokenizer: Any, tokens: PictureTokens, *, shows_videos: bool = False) -> None:
        """shows_videos: whether prompts may have videos; else `<video>` is text. Raises InvalidJob for a tokenizer that
        does not have the tokens of the model's pictures."""
        self._tokens = tokens
        self.text = self._text_of(tokenizer, tokens.pad)
        video_pad = tokens.video_pad if shows_videos else None
        self._video_text = None if video_pad is None else self._text_of(tokenizer, video_pad)

    def _text_of(self, tokenizer: Any, pad: int) -> str:
        """Start, pad and end as text."""
        ids = [self._tokens.start, pad, self._tokens.end]
        texts = [tokenizer.backend_tokenizer.id_to_token(token_id) for token_id in ids]
        text = "".join(text or "" for text in texts)
        encoded = tokenizer([text], add_special_tokens=False, return_attention_mask=False, verbose=False)
        if list(encoded["input_ids"][0]) != ids:
            raise InvalidJob(
                f"the tokenizer of {tokenizer.name_or_path!r} does not have the tokens {ids} that its config.json "
                "names for pictures as special tokens; take the tokenizer that came with the model"
            )
        return text

    def in_text(self, text: str) -> str:
        """A text with its places written in tokens of the model."""
        text = text.replace(PLACE, self.text)
        return text if self._video_text is None else text.replace(VIDEO_PLACE, self._video_text)

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
        noun = "video" if self._video_text is not None and kind in ("video", "video_url") else "picture"
        if noun == "picture" and kind not in ("image", "image_url"):
            videos = "" if self._video_text is None else ", video"
            raise BadData(
                f"{where}: a part of a message has the type {kind!r}; write text or image{videos}, and pictures into "
                "the column that data.imagesColumn names"
            )
        column = "data.imagesColumn" if noun == "picture" else "data.videosColumn"
        if any(part.get(name) is not None for name in (*_HOLD, kind)):
            raise BadData(
                f"{where}: a part of a message holds a {noun} itself; write it into the column that {column} names, "
                f"and a part {{type: {'image' if noun == 'picture' else 'video'}}} in its place"
            )
        return self.text if noun == "picture" else str(self._video_text)

    def with_times(self, text: str, videos: Sequence[PictureShape], where: str) -> str:
        """A text, whose places are written in tokens, with a place for each patch of frames behind its time, for models
        that read videos so. Raises BadData where a prompt has more or fewer places than the row has videos."""
        if self._video_text is None or not self._tokens.writes_times:
            return text
        parts = text.split(self._video_text)
        _require_as_many(len(parts) - 1, len(videos), where, "videos", VIDEO_PLACE)
        sampled = [shape.video for shape in videos]
        times = ["".join(f"<{time:.1f} seconds>{self._video_text}" for time in item.times) for item in sampled if item]
        return "".join(part for pair in zip(parts, [*times, ""], strict=True) for part in pair)

    def expand(self, tokens: NDArray[np.int64], num_tokens: Sequence[int], where: str) -> NDArray[np.int64]:
        """Token ids with the pad token of every picture's place repeated. num_tokens: of each picture of the row, in
        order.

        Raises BadData where a prompt has more or fewer places than the row has pictures.
        """
        _require_as_many(int((tokens == self._tokens.pad).sum()), len(num_tokens), where, "pictures", PLACE)
        return _repeated(tokens, self._tokens.pad, num_tokens)

    def expand_videos(self, tokens: NDArray[np.int64], videos: Sequence[PictureShape], where: str) -> NDArray[np.int64]:
        """Token ids with the pad token of every video's place repeated. Raises as `expand` does."""
        pad = self._tokens.video_pad
        if self._video_text is None or pad is None:
            return tokens
        num_tokens = [shape.num_tokens for shape in videos]
        if self._tokens.writes_times:
            num_tokens = [shape.num_tokens // shape.grid[0] for shape in videos for _ in range(shape.grid[0])]
        _require_as_many(int((tokens == pad).sum()), len(num_tokens), where, "videos", VIDEO_PLACE)
        return _repeated(tokens, pad, num_tokens)

    def in_order(self, tokens: NDArray[np.int64], items: Sequence[tuple[bytes, PictureShape]]) -> list[bytes]:
        """Pictures and videos of a prompt in the order of their tokens. items: in the order of each kind."""
        left = {
            self._tokens.pad: deque(item for item in items if item[1].video is None),
            self._tokens.video_pad: deque(item for item in items if item[1].video is not None),
        }
        if not left[self._tokens.pad] or not left[self._tokens.video_pad]:
            return [item for item, _ in items]
        pads, at, result = (
            [token for token in tokens.tolist() if token in left],
            0,
            list[bytes](),
        )
        while at < len(pads):
            item, shape = left[pads[at]].popleft()
            result.append(item)
            at += shape.num_tokens
        return result


_HOLD = ("image", "image_url", "video_url", "url", "path", "base64")
"""What a part of a message may have a picture in."""


def _require_as_many(num_places: int, num_items: int, where: str, noun: str, place: str) -> None:
    if num_places != num_items:
        raise BadData(
            f"{where}: the prompt has {num_places} places for {noun}, and the row {num_items} {noun}; "
            f"write {place} in the prompt once for each"
        )


def _repeated(tokens: NDArray[np.int64], pad: int, num_tokens: Sequence[int]) -> NDArray[np.int64]:
    repeats = np.ones(len(tokens), np.int64)
    repeats[tokens == pad] = num_tokens
    return np.repeat(tokens, repeats)
