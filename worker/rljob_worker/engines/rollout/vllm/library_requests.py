"""A request as vLLM has it: what it is asked, and the tokens that come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from rljob_worker.batch.row_index import row_number
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.rollout.responses import Response
from rljob_worker.engines.rollout.vllm.pictures import PictureInputs
from rljob_worker.engines.rollout.vllm.sampling import arguments_of
from rljob_worker.errors import BadData, InvalidJob

if TYPE_CHECKING:
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

_IN_STEPS, _AT_THE_END = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
"""When vLLM hands out tokens: at every step where a text may end the response, which costs an eighth of the speed of a
tiny model; else once."""


def params_of(response: Response, end_token_ids: tuple[int, ...]) -> SamplingParams:
    """How the rest of a response is sampled. Raises InvalidJob for what vLLM refuses."""
    kind = _IN_STEPS if response.stops else _AT_THE_END
    try:
        return SamplingParams(**arguments_of(response, end_token_ids), output_kind=kind)
    except VLLMValidationError as error:
        raise InvalidJob(f"row {row_number(response.row_id)}: vLLM does not sample so: {error}") from error


def inputs_of(responses: Sequence[Response], reader: PictureReader | None) -> list[Any]:
    """The tokens of each, with the pictures that it shows."""
    pictures = None if reader is None else PictureInputs(reader)
    return [
        pictures.of(response) if pictures is not None and response.pictures else tokens_input(response.sequence())
        for response in responses
    ]


def take(response: Response, output: RequestOutput, version: int) -> None:
    """The tokens that a response has more than before. version: of the policy that drew them."""
    (result,) = output.outputs
    known = 0 if response.stops else response.num_new
    _add(response, result.token_ids, result.logprobs, known, version)


def catch_up(response: Response, engine: LLMEngine, version: int) -> None:
    """What vLLM has of a request that runs, of which it would say nothing before its end."""
    if not response.is_open:
        return
    state = engine.output_processor.request_states[response.handle]
    known = response.num_new
    _add(response, state.detokenizer.output_token_ids, state.logprobs_processor.logprobs, known, version)


def require_finite(responses: Iterable[Response]) -> None:
    """Raises BadData for the first that is spoilt."""
    for response in responses:
        if response.spoilt_by is not None:
            raise BadData(
                f"row {row_number(response.row_id)}: the logits of policy version {response.spoilt_by} are not "
                f"finite after {len(response.tokens)} tokens of its response"
            )


def _add(response: Response, tokens: Sequence[int], flat: FlatLogprobs, known: int, version: int) -> None:
    """The tokens that a response does not know yet. flat: of each of the tokens, the sampled one and then those that it
    asks for."""
    if response.top is None:
        response.add(tokens[known:], flat.logprobs[known:], version)
        return
    places = list(zip(flat.start_indices, flat.end_indices, strict=True))[known:]
    likely = [(flat.token_ids[begin + 1 : end], flat.logprobs[begin + 1 : end]) for begin, end in places]
    response.add(tokens[known:], [flat.logprobs[begin] for begin, _ in places], version, likely)
