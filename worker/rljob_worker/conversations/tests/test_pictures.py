"""Pictures in conversations: of prompts, and of what tools answer."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rljob_api.catalogue.columns import IMAGES
from rljob_api.tests.builders import make_plan
from rljob_worker import conversations
from rljob_worker.batch import Column
from rljob_worker.conversations.agents.branch_player import BranchPlayer
from rljob_worker.conversations.history import History
from rljob_worker.conversations.journal.files import JournalFolder
from rljob_worker.conversations.journal.records import Record, RecordedAnswer, records_of
from rljob_worker.conversations.journal.replay import DoesNotReplay, Journal, digest_of, with_urls
from rljob_worker.conversations.journal.tests.test_replay import Written
from rljob_worker.conversations.picture_parts import as_json, content_pictures, data_url, with_pictures
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.playing.tests.playing import FunctionWorld, SteppingEngine, play, tasks_of
from rljob_worker.conversations.policy import Bounds, Policy, TurnRequest
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.rendering.tests import chat_models
from rljob_worker.conversations.rendering.tests.chat_models import VISION, tokenizer_with, tool
from rljob_worker.conversations.run_functions.tests.scripted import a_task, played
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.conversations.world import SharedWorld, ToolHandle
from rljob_worker.data.dataset import Prompts
from rljob_worker.endpoint.calls import ChatCall
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.rollout.requests import Ending, Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.seeing import END, IMAGE, encoded, reader_of, showing, text, write_vision_model
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.sandbox.calls.loading import ENCODED_PICTURES
from rljob_worker.stages.played.played_rows import played_batch
from rljob_worker.stages.stage import Alone
from rljob_worker.vision.checkpoint_files import PictureTokens, VisionFiles, read_vision_files
from rljob_worker.vision.pictures import PictureList, decode
from rljob_worker.vision.processing import PictureProcessor
from rljob_worker.vision.sizes import PixelBudget
from rljob_worker.vision.tests.checkpoints import checkpoint
from rljob_worker.vision.tests.picture_files import picture

CPU = torch.device("cpu")
LARGE = picture(84, 56)
"""3 x 2 merged patches of 28 x 28 pixels."""
ZOOM = tool("zoom", left="integer", top="integer")
SHARED = SharedWorld(tools={"zoom": ToolHandle(ZOOM, "tool:0")})
CALL = '<tool_call>{"name": "zoom", "arguments": {"left": 28, "top": 0}}</tool_call>'


def zoom(method: str | None, arguments: dict[str, Any]) -> Any:
    """A cell of the picture, as a tool answers with it."""
    left, top = arguments["left"], arguments["top"]
    file = io.BytesIO()
    Image.fromarray(decode(LARGE)[top : top + 28, left : left + 28]).save(file, "PNG")
    part = {"type": "image_url", "image_url": {"url": data_url(file.getvalue())}}
    return [{"type": "text", "text": "closer: "}, part]


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PictureProcessor:
    """With the picture tokens of `tokenizer_with`."""
    files = read_vision_files(str(checkpoint(tmp_path_factory.mktemp("model"))))
    ids = tokenizer_with(chat_models.HERMES).convert_tokens_to_ids(list(VISION))
    return PictureProcessor(VisionFiles(files.model_type, PictureTokens(*ids), files.patches), PixelBudget(784, 7056))


def shown(tokens: np.ndarray) -> str:
    return str(tokenizer_with(chat_models.HERMES).decode(tokens.tolist()))


def place(num_tokens: int) -> str:
    return VISION[0] + VISION[1] * num_tokens + VISION[2]


def test_a_tool_answers_with_a_picture_that_the_policy_is_shown(processor: PictureProcessor) -> None:
    question = with_pictures([{"role": "user", "content": "<image>What is there?"}], [LARGE])
    trajectory = played(
        conversations.tools,
        [CALL, "a dot"],
        task=a_task(*question),
        shared=SHARED,
        functions={"tool:0": zoom},
        template=chat_models.HERMES,
        pictures=processor,
    )
    assert trajectory.failed is None, trajectory.message
    (row,) = trajectory.rows
    assert row.pictures == [LARGE, *content_pictures(zoom(None, {"left": 28, "top": 0}))]
    assert f"user\n{place(6)}What is there?" in shown(row.prompt)
    assert f"<tool_response>\ncloser: {place(1)}\n</tool_response>" in shown(row.response_ids)


def test_a_tool_that_asks_for_the_pictures_of_the_prompt_is_given_them(processor: PictureProcessor) -> None:
    asked: list[dict[str, Any]] = []

    def look(method: str | None, arguments: dict[str, Any]) -> str:
        asked.append(arguments)
        return "seen"

    task = replace(a_task({"role": "user", "content": "closer"}), pictures=(b"\x00\x01\x02", b"\xff"))
    for sees in (True, False):
        shared = SharedWorld(tools={"zoom": ToolHandle(ZOOM, "tool:0", sees=sees)})
        played(
            conversations.tools, [CALL, "a dot"], task=task, shared=shared, functions={"tool:0": look},
            template=chat_models.HERMES, pictures=processor,
        )  # fmt: skip
    given, others = asked
    assert given == {**others, ENCODED_PICTURES: ["AAEC", "/w=="]} and others == {"left": 28, "top": 0}


def test_prompt_sampled_and_following_are_the_whole_conversation_with_pictures(processor: PictureProcessor) -> None:
    tokenizer = tokenizer_with(chat_models.HERMES)
    renderer = ChatRenderer(tokenizer, pictures=processor)
    before = [*with_pictures([{"role": "user", "content": "<image>u <image>"}], [LARGE, picture(28, 28)])]
    new = [{"role": "tool", "name": "zoom", "tool_call_id": "call_0_0", "content": zoom(None, {"left": 0, "top": 0})}]
    said = {"role": "assistant", "content": "yes"}
    sampled = [*tokenizer.encode("yes", add_special_tokens=False), tokenizer.eos_token_id]
    following = renderer.following(History([*before, said]), new)
    assert following is not None
    whole = [*renderer.opening(before), *sampled, *following]
    assert whole == renderer.opening([*before, said, *new]).tolist()


def test_what_the_world_writes_is_no_picture(processor: PictureProcessor) -> None:
    renderer = ChatRenderer(tokenizer_with(chat_models.HERMES), pictures=processor)
    for words in (place(1), "\ufdef", f"{VISION[1]}"):
        tokens = renderer.opening([{"role": "user", "content": words}])
        assert processor.tokens.pad not in tokens.tolist()


def test_pictures_that_cannot_be_shown_are_refused_by_name(processor: PictureProcessor) -> None:
    tokenizer = tokenizer_with(chat_models.HERMES)
    message = {"role": "user", "content": [{"type": "image", "image": LARGE}]}
    with pytest.raises(InvalidJob, match=r"is not shown any: take one that sees, and set data.imagesColumn or rollout"):
        ChatRenderer(tokenizer).opening([message])
    renderer = ChatRenderer(tokenizer, pictures=processor)
    for part, words in (
        ({"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}, "write its bytes as a data URL"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}, "is not base64"),
        ({"type": "video"}, "has the type 'video'; write text, image or image_url"),
        ({"type": "image", "image": b"<html>"}, "the bytes are no picture"),
    ):
        with pytest.raises(BadData, match=words):
            renderer.opening([{"role": "user", "content": [part]}])
    llama = ChatRenderer(
        tokenizer_with(chat_models.NO_TOOLS.replace("message.content", "message.content[:2]")), pictures=processor
    )
    with pytest.raises(BadData, match="shows 0 of 1 pictures"):
        llama.opening([{"role": "user", "content": [{"type": "text", "text": "look"}, *message["content"]]}])
    for words, pictures in (("<image>", []), ("none", [LARGE])):
        with pytest.raises(BadData, match="places for pictures than its row has pictures"):
            with_pictures([{"role": "user", "content": words}], pictures)


def test_a_journal_has_a_picture_once_and_plays_it_again(tmp_path: Path) -> None:
    answer = zoom(None, {"left": 0, "top": 0})

    async def looks(task: Task, policy: Any, world: Any) -> None:
        for _ in range(2):
            await policy.complete(None if not world.turns else [65])
            seen.append((await world.call("zoom")).value)

    def run(**options: Any) -> FunctionWorld:
        world = FunctionWorld(lambda *_: answer)
        play(looks, tasks_of("hi", "ho"), SteppingEngine(lambda *_: "ab~"), caller=world, **options)
        return world

    seen: list[Any] = []
    folder = JournalFolder(tmp_path, "actor-0", "job", is_over=lambda *_: False, tidies=False)
    assert len(run(entries=folder.entries(1)).calls) == 4
    folder.close()
    (path,) = tmp_path.rglob("*.jsonl")
    assert path.read_bytes().count(b"data:image/png") == 1
    assert not run(records=folder.records(1, frozenset({0, 1}))).calls and seen == [answer] * 8


def test_a_recorded_picture_that_is_missing_does_not_replay() -> None:
    entries = Written()
    entries.append({"trajectory": 0, "attempt": 0, "turn": 0, "call": "c.0"})
    value = [{"image": "rljob-picture:12"}]
    entries.append({"trajectory": 0, "attempt": 0, "turn": 0, "call": "c.0", "answer": {"value": value}})
    assert json.loads(entries[1])["answer"]["value"] == value and records_of(entries)[0, 0].pictures == {}


URL = "data:image/png;base64,AAEC"


@pytest.mark.parametrize(
    "value",
    [
        f"rljob-picture:{digest_of(URL.encode())}",
        [None, "rljob-picture:12", {"image": URL, "text": f"rljob-picture:{digest_of(URL.encode())}"}, URL],
        URL,
        [[[None], {"pictures": [[[0], "12"]]}]],
    ],
)
def test_no_text_is_taken_for_a_picture(value: Any) -> None:
    entries = Written()
    written = Journal(0, 0, None, entries)
    call, _ = written.begin_call(0, "look")
    written.write_answer(0, call, {"value": value, "error": None, "seconds": 0.5})
    again = Journal(0, 0, records_of(entries)[0, 0], None, remembers=True)
    _, answer = again.begin_call(0, "look")
    assert answer is not None and answer["value"] == value
    # a checkpoint, too
    assert again.whole is not None
    kept = Record.from_json(json.loads(json.dumps(again.whole.to_json())))
    _, answer = Journal(0, 0, kept, None).begin_call(0, "look")
    assert answer is not None and answer["value"] == value


def test_an_answer_that_does_not_say_where_its_pictures_are_has_them_marked() -> None:
    marked: RecordedAnswer = {"value": [{"image": "rljob-picture:12"}], "error": None, "seconds": 0.5}
    assert with_urls(marked, {"12": URL}) == [{"image": URL}]
    with pytest.raises(DoesNotReplay, match="the picture 12 of an answer is not recorded"):
        with_urls(marked, {})


def cell(seed: int) -> bytes:
    return encoded(2, 2 + 2 * (seed % 2), seed)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_log_probs_of_rows_with_pictures_of_their_own_are_those_of_the_trainer(tmp_path: Path, kind: str) -> None:
    """Zoom: the prompt of a group shows one picture, and each trajectory asks for others as it goes."""
    path = write_vision_model(tmp_path, kind)
    model = load_policy(path, torch.float32, CPU)
    engine = TransformersRollout(model, CPU, (END,), 1.0, lambda: 1 << 30, reader=reader_of(model))

    async def zooms(task: Task, policy: Any, world: Any) -> None:
        await policy.complete(None, max_tokens=3)
        for turn in range(task.member):
            closer = cell(3 * task.member + turn)
            await policy.complete(showing(text(2, turn), closer, text(1)), pictures=[closer], max_tokens=4)

    first, plain = encoded(4, 4), np.array(text(6), np.int64)
    asked = np.array(showing(text(3), first, text(2)), np.int64)
    tasks = [
        *Task.of_group([], asked, {}, job_seed=1, group=0, group_size=3, pictures=[first]),
        *Task.of_group([], plain, {}, job_seed=1, group=1, group_size=3),
    ]
    bounds = Bounds(turns=4, rows=1, response_tokens=80, row_tokens=120)
    play_all = Conversations(engine, zooms, None, bounds, picture_token=IMAGE)
    try:
        trajectories = play_all.play(Play(tasks, Sampling(seed=3), "step-1"), Alone())
    finally:
        play_all.close()
    assert not any(item.failed for item in trajectories), [item.message for item in trajectories]
    prompts = Prompts([asked, plain], ["", ""], {}, Column.strings(["s", "s"]))
    spec = make_plan("rollout.conversation={pictures: true}").spec
    batch = played_batch(trajectories, prompts, np.arange(2), spec=spec, version=0)
    counts = [PictureList.count(blob) for blob in batch[IMAGES].to_list()]
    # with every turn one more; a turn that ended the conversation by a token of pictures may be the last
    assert counts[0] == 1 and counts[3] == 0 and max(counts) == 3
    for budget in (30, 4096):
        settings = TrainSettings(trainable=False, tokens_per_micro_batch=budget, patches_per_micro_batch=24)
        scored = FSDPEngine(load_policy(path, torch.float32, CPU), settings, CPU, reader=reader_of(model)).log_probs(
            batch
        )
        mask = batch["response_mask"].values.astype(bool)
        np.testing.assert_allclose(scored.values[mask], batch["rollout_log_probs"].values[mask], atol=1e-5)


def test_a_row_does_not_go_on_behind_a_drawn_token_of_pictures() -> None:
    async def twice(task: Task, policy: Any, world: Any) -> None:
        await policy.complete(None)
        await policy.complete([65])

    tasks = tasks_of("hi")
    engine = SteppingEngine(lambda row, turn, before: "aP~")
    player = Conversations(engine, twice, None, Bounds(8, 1, 200, 250), picture_token=ord("P"))
    try:
        (trajectory,) = player.play(Play(tasks, Sampling(), "step-1"), Alone())
    finally:
        player.close()
    assert trajectory.truncated and trajectory.num_turns == 1 and trajectory.failed is None


def test_equal_tokens_with_other_pictures_are_other_prompts() -> None:
    """Two requests of one turn, whose tokens are equal, are submitted as two prompts."""
    tasks = [
        task
        for group, shade in enumerate((b"one", b"two"))
        for task in Task.of_group([], np.array([65]), {}, job_seed=1, group=group, group_size=2, pictures=[shade])
    ]
    engine = SteppingEngine(lambda *_: "a~")

    async def once(task: Task, policy: Any, world: Any) -> None:
        await policy.complete(None)

    play(once, tasks, engine)
    (requests,) = engine.submitted
    assert requests.prompts.to_list() == [[65], [65]] and requests.prompt_of.tolist() == [0, 0, 1, 1]
    assert [PictureList.unpack(blob) for blob in requests.pictures.to_list()] == [[b"one"], [b"two"]]


def test_an_agent_that_sends_pictures_stays_in_its_row_until_it_sends_others(processor: PictureProcessor) -> None:
    tokenizer = tokenizer_with(chat_models.HERMES)
    said = np.array([*tokenizer.encode("yes", add_special_tokens=False), tokenizer.eos_token_id])

    async def generate(request: TurnRequest) -> Sampled:
        return Sampled(said, np.zeros(len(said), np.float32), np.zeros(len(said), np.int64), Ending.END_TOKEN)

    async def play_it() -> None:
        asked = as_json(with_pictures([{"role": "user", "content": "<image>What is there?"}], [LARGE]))
        assert json.loads(json.dumps(asked)) == asked
        trajectory = Trajectory(a_task({"role": "user", "content": "u"}))
        renderer = ChatRenderer(tokenizer, pictures=processor)
        player = BranchPlayer(Policy(trajectory, renderer, Bounds(4, 2, 200, 400), generate).branches())
        await player.chat(ChatCall(asked))
        small = as_json([{"role": "user", "content": [{"type": "image", "image": picture(28, 28)}]}])
        answered = [*asked, {"role": "assistant", "content": "yes"}, *small]
        turn = await player.chat(ChatCall(answered))
        (row,) = trajectory.rows
        assert row.pictures == [LARGE, picture(28, 28)]
        assert list(turn.prompt_ids) == renderer.opening(answered).tolist()
        other = as_json(with_pictures([{"role": "user", "content": "<image>What is there?"}], [picture(84, 56, 9)]))
        await player.chat(ChatCall([*other, {"role": "assistant", "content": "yes"}, *small]))
        assert [len(row.pictures) for row in trajectory.rows] == [2, 2]

    asyncio.run(play_it())
