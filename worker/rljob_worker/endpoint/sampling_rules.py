"""Which sampling an agent may ask for. A turn is drawn as the job says, or its log-probs are not those of the policy.

Parameters that would draw otherwise are passed over (`Clamp`) or refused by name (`Refuse`). What callers rely on, and
what no engine of a rollout does, is refused in both, unless the job lists it in `passedOver`: no engine draws from a
part of the distribution for a caller, since the log-probs that the trainer computes anew are of the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rljob_api.v1alpha1.conversation import ReliedOn
from rljob_worker.endpoint.calls import RequestRefused

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({}, []),
    "seed": (),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "allowed_token_ids": (),
    "bad_words": ([],),
}
"""Parameters that would draw otherwise, with their values that do not; None never does."""
NOT_DONE: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "echo": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "functions": ([],),
    "function_call": (),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "lora_request": (),
    "documents": ([],),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
}
"""What is refused, with the values that ask for nothing."""
RELIED_ON = frozenset(get_args(ReliedOn))
"""What of these a job may have passed over."""
TOP_LOG_PROBS = "top_logprobs"
"""The one of RELIED_ON that leaves the draw as it is. vLLM's route for tokens has it in its number of `logprobs`."""
MOST_TOP_LOG_PROBS = 20
"""That a call may ask for: OpenAI's bound, and vLLM's."""


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """What calls may ask for."""

    others: Literal["Clamp", "Refuse"] = "Clamp"
    """What becomes of a parameter that differs from the job's."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    """Texts that end a turn in the job."""
    stop_token_ids: tuple[int, ...] = ()
    passed_over: frozenset[str] = frozenset()
    """Those of RELIED_ON that are not looked at."""
    gives_top_log_probs: bool = False
    """Whether the engine gives likely tokens beside those that it draws."""

    def check(self, body: Mapping[str, Any], prefix: str = "") -> None:
        """Raises RequestRefused, which names the parameter. prefix: before names, such as `sampling_params.`."""
        for name, allowed in NOT_DONE.items():
            if name in body and name not in self.passed_over and not _is_one_of(body[name], allowed):
                raise RequestRefused(
                    _not_done(prefix + name, body[name], allowed), param=prefix + name, code="unsupported"
                )
        if self.others == "Refuse":
            for name, allowed in self._drawn_by().items():
                if name in body and not _is_one_of(body[name], allowed):
                    raise RequestRefused(
                        _differs(prefix + name, body[name], allowed), param=prefix + name, code="sampling"
                    )
            for name, job in (("stop", self.stop), ("stop_token_ids", self.stop_token_ids)):
                _check_stops(prefix + name, body.get(name), job)

    def top_log_probs(self, value: Any, name: str) -> int:
        """How many likely tokens a call gets beside each that is sampled. Raises RequestRefused, which names the
        parameter."""
        is_passed_over, number = TOP_LOG_PROBS in self.passed_over, 0 if value is None else value
        if not isinstance(number, int) or isinstance(number, bool) or number < -1:
            raise RequestRefused(f"{name} is {_shown(value)}, not {_TOP_NUMBERS}", param=name)
        if is_passed_over or not number:
            return 0
        if not self.gives_top_log_probs:
            why = "the engine of this job gives the log-prob of the sampled token alone; leave it out"
            message = f"{name} is {number}, and {why}{passing_over(TOP_LOG_PROBS)}"
            raise RequestRefused(message, param=name, code="unsupported")
        if not 0 < number <= MOST_TOP_LOG_PROBS:
            raise RequestRefused(f"{name} is {number}, not {_TOP_NUMBERS}", param=name)
        return number

    def _drawn_by(self) -> dict[str, tuple[Any, ...]]:
        top_k = (self.top_k,) if self.top_k else (0, -1)
        own = {"temperature": (self.temperature,), "top_p": (self.top_p,), "top_k": top_k, "min_p": (self.min_p,)}
        return {**own, **NEUTRAL}


_TOP_NUMBERS = f"a whole number from 0 to {MOST_TOP_LOG_PROBS}"


def _is_one_of(value: Any, allowed: Collection[Any]) -> bool:
    return value is None or any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _not_done(name: str, value: Any, allowed: Collection[Any]) -> str:
    if name == "n":
        return f"n is {_shown(value)}: a call is one turn of the policy; make one call for each answer"
    neutral = f", or write {next(iter(allowed))!r}" if allowed else ""
    field = name.rpartition(".")[2]
    cure = f"leave it out{neutral}" + (passing_over(field) if field in RELIED_ON else "")
    why = "the engine of this job cannot do that"
    if field == "ignore_eos":
        why = "a turn ends where the policy ends it, which is what it learns"
    elif field in RELIED_ON:
        why = "tokens are drawn from the whole distribution, which the log-probs of the trainer are of"
    return f"{name} is {_shown(value)}, and {why}; {cure}"


def passing_over(field: str) -> str:
    """How a job has a parameter of RELIED_ON passed over."""
    return f", or list {field} in rollout.conversation.endpoint.passedOver to have it passed over"


def _differs(name: str, value: Any, allowed: Collection[Any]) -> str:
    job = f"; the job has {next(iter(allowed))!r}" if allowed else ""
    return (
        f"{name} is {_shown(value)}{job}: leave it out, or write rollout.conversation.endpoint.otherSampling: Clamp to "
        "have it passed over"
    )


def _check_stops(name: str, value: Any, job: Collection[Any]) -> None:
    stops = [] if value is None else value if isinstance(value, list) else [value]
    if others := [stop for stop in stops if stop not in job]:
        raise RequestRefused(_differs(name, others[0], [list(job)]), param=name, code="sampling")
