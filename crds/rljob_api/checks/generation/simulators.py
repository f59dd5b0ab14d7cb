"""Can the job's episodes be played: is the simulator named, and is what bounds an episode possible?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.columns import needs_baseline, resamples
from rljob_api.catalogue.services import PREFIX, VIDEO_ENCODER
from rljob_api.catalogue.stages import USER_STAGE
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import RLJobSpec, SimulatorSpec
from rljob_api.vocabulary.problem import Problem, suggestion

_PATH = "spec.rollout.simulator"
TASK = "task"
"""The column of the data that tells tasks apart."""
SHIPPED_SIMULATORS = "rljob_worker.embodied.adapters:"
"""The module of the simulators that come with rljob."""
SHIPPED = ("gymnasium", "gymnasium_robotics", "libero", "maniskill", "metaworld")
"""Functions of that module."""


def check_simulator(subject: Subject) -> Iterator[Problem]:
    """The function, bounds, data, and what of the job cannot go with a simulator."""
    spec = subject.spec
    simulator = spec.rollout.simulator
    if simulator is None:
        if not spec.data.train:
            message = "there is nothing to train on"
            yield problem("spec.data.train", None, message, "List a data set, such as - path: data/train.parquet.")
        return
    yield from _function(simulator)
    yield from _bounds(simulator)
    yield from _data(spec, simulator)
    yield from _video(spec, simulator)
    yield from _unbuilt(spec)


def check_progress(subject: Subject) -> Iterator[Problem]:
    """Rewards by video are for episodes that have videos."""
    simulator, progress = subject.spec.rollout.simulator, subject.spec.algorithm.progress
    if progress is not None and (simulator is None or simulator.video is None):
        message = "rewards by video are for episodes, and this job records no videos"
        fix = f"Add {_PATH.removeprefix('spec.')}.video with an encoder, or use another algorithm, such as GRPO."
        yield problem("spec.algorithm.progress", progress.to_json(), message, fix)
    if progress is not None and simulator is not None and TASK not in simulator.columns:
        message = f"an episode is compared with those of its task, which the column {TASK!r} names"
        fix = f"Add {TASK} to the list, and the column to the data."
        yield problem(f"{_PATH}.columns", list(simulator.columns), message, fix)


def _video(spec: RLJobSpec, simulator: SimulatorSpec) -> Iterator[Problem]:
    video = simulator.video
    if video is None:
        return
    path, values = f"{_PATH}.video", video.to_json()
    if [video.run, video.path, video.service].count(None) != 2:
        message = "an encoder is a function, a model or a service"
        yield problem(path, values, message, "Write one of run, path and service.")
    yield from _encoder_service(f"{path}.service", spec, video.service)
    if video.run is not None and USER_STAGE.match(video.run) is None:
        yield problem(f"{path}.run", video.run, "this is not of the form module:function", "Write module:function.")
    if video.options and video.run is None:
        yield problem(f"{path}.options", video.options, "only a function has options", "Leave them out.")
    if not simulator.cameras:
        yield problem(path, values, "no camera sees what happens", "Name a picture in cameras.")
    if spec.algorithm.progress is None:
        fix = "Leave it out, or use the algorithm SRPO, which rewards by them."
        yield problem(path, values, "nobody reads the embeddings of videos", fix)


def _encoder_service(path: str, spec: RLJobSpec, name: str | None) -> Iterator[Problem]:
    """That it is there, and encodes videos: an application of the user's own may."""
    applications = {service.name: service.run for service in spec.services}
    if name is None:
        return
    if name not in applications:
        yield problem(path, name, "there is no such service", suggestion(name, list(applications)))
    elif (run := applications[name]).startswith(PREFIX) and run != PREFIX + VIDEO_ENCODER:
        message = f"{run} encodes no videos"
        yield problem(path, name, message, f"Name a service with run: {PREFIX}{VIDEO_ENCODER}.")


def _function(simulator: SimulatorSpec) -> Iterator[Problem]:
    run = simulator.run
    if USER_STAGE.match(run) is None:
        yield problem(f"{_PATH}.run", run, "this is not of the form module:function", "Write module:function.")
    name = run.removeprefix(SHIPPED_SIMULATORS)
    if name != run and name not in SHIPPED:
        yield problem(f"{_PATH}.run", run, "no such simulator is shipped", suggestion(name, list(SHIPPED)))


def _bounds(simulator: SimulatorSpec) -> Iterator[Problem]:
    chunk, most = simulator.action_chunk, simulator.max_steps
    if chunk > most:
        message = (
            f"a decision has more actions than an episode has steps, {_PATH.removeprefix('spec.')}.maxSteps {most}"
        )
        yield problem(f"{_PATH}.actionChunk", chunk, message, f"Write {most} or less, or raise maxSteps.")
    bounds = simulator.reward_bounds
    if bounds is not None and bounds.low > bounds.high:
        message = "no reward is between the two"
        yield problem(f"{_PATH}.rewardBounds", bounds.to_json(), message, "Write low below high.")
    for field in ("cameras", "state", "columns"):
        names = getattr(simulator, field)
        for i, name in enumerate(names):
            if name in names[:i]:
                yield problem(f"{_PATH}.{field}[{i}]", name, "this stands in the list before", "Leave it out.")


def _data(spec: RLJobSpec, simulator: SimulatorSpec) -> Iterator[Problem]:
    if spec.rollout.conversation is not None:
        message = "a trajectory is either a conversation or an episode"
        yield problem(_PATH, simulator.to_json(), message, "Leave out rollout.conversation, or this.")
    if simulator.evaluation is not None and spec.data.validation:
        message = "data.validation says as well which episodes validation plays"
        fix = "Leave out one of the two."
        yield problem(f"{_PATH}.evaluation", simulator.evaluation.to_json(), message, fix)


def _unbuilt(spec: RLJobSpec) -> Iterator[Problem]:
    """Settings that mean something with a simulator which this version cannot do."""
    message = "this does not go with rollout.simulator"
    if spec.rollout.partial is not None:
        fix = "Leave it out: episodes are finished in the step that draws them."
        yield problem("spec.rollout.partial", spec.rollout.partial.to_json(), message, fix)
    for name, column in (("imagesColumn", spec.data.images_column), ("videosColumn", spec.data.videos_column)):
        if column is not None:
            fix = "Leave it out: pictures are those of rollout.simulator.cameras."
            yield problem(f"spec.data.{name}", column, message, fix)
    if resamples(spec):
        yield problem("spec.algorithm.sampling.resampling", True, message, "Leave it out.")
    if needs_baseline(spec):
        fix = "Use another, such as GRPO: nobody plays an episode of the most likely actions."
        yield problem("spec.algorithm.advantage.estimator", spec.algorithm.advantage.estimator, message, fix)
