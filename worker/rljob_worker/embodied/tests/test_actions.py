"""Action tokens and continuous actions, by numbers worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rljob_worker.embodied.action_policy import action_policy
from rljob_worker.embodied.actions import ActionStatistics, ActionTokens
from rljob_worker.embodied.adapters.libero_environment import signed_gripper
from rljob_worker.embodied.mlp_files import write_mlp_policy
from rljob_worker.embodied.observation import Observation
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.tests.acting import write_mlp_config, write_openvla_config
from rljob_worker.engines.tests.builders import write_config
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.tests.picture_jobs import drawn, write_seeing_model

STATISTICS = {
    "bridge": {"action": {"q01": [-2.0, 0.0], "q99": [2.0, 1.0], "mask": [True, False]}},
    "fractal": {"action": {"min": [0.0, 0.0], "max": [4.0, 4.0]}},
}


def test_words_of_openvla_count_down_and_the_first_two_are_one_bin() -> None:
    tokens = ActionTokens(31744, 256, 1, ActionStatistics.unit(3), "OpenVLA")
    # edges -1, -1 + 2/255, ...: the lowest centre is -1 + 1/255, the highest 1 - 1/255
    assert tokens.actions(np.array([31999, 31744, 31745])).tolist() == [
        [pytest.approx(-254 / 255), pytest.approx(254 / 255), pytest.approx(254 / 255)]
    ]
    # -1 is in the lowest bin, 0 in the middle one of 255, and 3 is cut to 1
    assert tokens.tokens(np.array([[-1.0, 0.0, 3.0]])).tolist() == [31999, 31999 - 127, 31745]


def test_ascending_words_are_as_many_bins() -> None:
    tokens = ActionTokens(10, 4, 2, ActionStatistics.unit(1))
    # four bins of width 0.5: centres -0.75, -0.25, 0.25, 0.75
    assert tokens.actions(np.array([10, 13])).tolist() == [[-0.75], [0.75]]
    assert tokens.tokens(np.array([[-0.3], [0.6]])).tolist() == [11, 13]
    assert (tokens.num_tokens, tokens.words.tolist()) == (2, [10, 11, 12, 13])


def test_statistics_turn_bins_into_units_where_the_mask_says_so() -> None:
    bridge = ActionStatistics.of(STATISTICS, "bridge", 2)
    # 0.5 (0.5 + 1) (2 + 2) - 2 = 1; the gripper stays as it is
    np.testing.assert_allclose(bridge.denormalised(np.array([[0.5, 0.25]])), [[1.0, 0.25]], atol=1e-7)
    np.testing.assert_allclose(bridge.normalised(np.array([[1.0, 0.25]])), [[0.5, 0.25]], atol=1e-7)
    fractal = ActionStatistics.of(STATISTICS, "fractal", 2)
    np.testing.assert_allclose(fractal.denormalised(np.array([[0.0, -1.0]])), [[2.0, 0.0]], atol=1e-7)


def test_missing_statistics_list_those_there_are() -> None:
    with pytest.raises(InvalidJob, match="no statistics of 'libero'; there are bridge, fractal"):
        ActionStatistics.of(STATISTICS, "libero", 2)
    with pytest.raises(InvalidJob, match="has statistics of bridge, fractal; name the data set"):
        ActionStatistics.of(STATISTICS, None, 2)
    with pytest.raises(InvalidJob, match="statistics of none at all"):
        ActionStatistics.of({}, None, 2)
    with pytest.raises(InvalidJob, match="2 q01, 2 q99 and a mask of 2, and an action of the model has 7 dimensions"):
        ActionStatistics.of(STATISTICS, "bridge", 7)
    with pytest.raises(InvalidJob, match="'x' has no action with q01 and q99, or min and max"):
        ActionStatistics.of({"x": {"action": {"mean": [0.0]}}}, "x", 1)


def test_tokens_that_are_no_decision_are_refused() -> None:
    tokens = ActionTokens(10, 4, 1, ActionStatistics.unit(2))
    with pytest.raises(BadData, match="has 2 action tokens, and 3 came"):
        tokens.actions(np.array([10, 11, 12]))
    with pytest.raises(BadData, match="has token 14, and action words are 10 to 13"):
        tokens.actions(np.array([10, 14]))


def test_a_gripper_of_data_sets_is_turned_for_libero() -> None:
    assert signed_gripper(np.array([[0.3, 1.0], [0.2, 0.0]])).tolist() == [[0.3, -1.0], [0.2, 1.0]]


def test_a_policy_of_a_directory_reads_states(tmp_path: Path) -> None:
    path = write_mlp_config(tmp_path, norm_stats=STATISTICS)
    policy = action_policy(path, "bridge", 2)
    assert policy.num_tokens == 4 and policy.allowed_tokens.tolist() == [0, 1, 2, 3, 4]
    seen = Observation((), np.zeros(3, np.float32), "go")
    assert policy.prompt(seen).tolist() == [5]
    # five bins of width 0.4: 0.8 of them is 0.5 (0.8 + 1) (2 + 2) - 2 = 1.6
    np.testing.assert_allclose(policy.actions(np.array([4, 2, 2, 0])), [[1.6, 0.0], [0.0, -0.8]], atol=1e-7)
    with pytest.raises(BadData, match="a state of 2 numbers, and the model reads 3"):
        policy.prompt(Observation((), np.zeros(2, np.float32), "go"))


def test_models_that_cannot_act_so_are_refused(tmp_path: Path) -> None:
    path = write_mlp_config(tmp_path / "mlp", norm_stats=STATISTICS)
    with pytest.raises(InvalidJob, match="has 2 actions, and rollout.simulator.actionChunk is 8; write actionChunk: 2"):
        action_policy(path, "bridge", 8)
    with pytest.raises(InvalidJob, match=r"model path .*: config.json: norm_stats has no statistics of 'libero'"):
        action_policy(path, "libero", 2)
    with pytest.raises(InvalidJob, match="'qwen3' has no action words"):
        action_policy(write_config(tmp_path / "qwen"), None, 1)


def test_a_written_policy_is_loaded_with_its_tokenizer(tmp_path: Path) -> None:
    model = write_mlp_policy(tmp_path, state_size=3, dimensions=2, bins=8)
    loaded = load_policy(str(tmp_path), torch.float32, torch.device("cpu"))
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (len(tokenizer), tokenizer.decode([7])) == (9, "7")
    assert action_policy(str(tmp_path), None, 1).actions(np.array([7, 0])).tolist() == [[0.875, -0.875]]


def test_a_model_that_also_talks_acts_with_the_words_that_its_config_names(tmp_path: Path) -> None:
    write_seeing_model(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    tokens = {"first_word": 20, "bins": 4, "chunk": 1, "dimensions": 2}
    file.write_text(json.dumps(config | {"action_tokens": tokens}))
    policy = action_policy(str(tmp_path), None, 1)
    prompt = policy.prompt(Observation((drawn(0),), None, "count"))
    # 84 x 84 pixels are 6 x 6 patches, of which four are a token
    assert (prompt == config["image_token_id"]).sum() == 9
    assert policy.allowed_tokens.tolist() == [20, 21, 22, 23]
    assert policy.actions(np.array([20, 23])).tolist() == [[-0.75, 0.75]]
    with pytest.raises(BadData, match="reads no state; leave rollout.simulator.state out"):
        policy.prompt(Observation((drawn(0),), np.zeros(3, np.float32), "count"))


def test_openvla_is_asked_with_pictures_and_state_behind_the_first_token(tmp_path: Path) -> None:
    path = write_openvla_config(tmp_path, state_size=3)
    words = ["<unk>", "<s>", "</s>", "In", ":", "what", "▁"]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(path)
    policy = action_policy(path, "plane", 2)
    seen = Observation((b"", b""), np.zeros(3, np.float32), "Push")
    prompt = policy.prompt(seen).tolist()
    # <s>, two pictures of four tokens, the state; "In" ":" and words that are not known; the empty token
    assert prompt[:10] == [1, *[36] * 8, 37] and prompt[10:12] == [3, 4] and prompt[-1] == 6
    # word 35 is the lowest of five bins of width 0.4: -0.8 of [-2, 2]
    np.testing.assert_allclose(policy.actions(np.array([35, 30, 33, 31])), [[-1.6, 1.6], [0.0, 1.6]], atol=1e-7)
    with pytest.raises(BadData, match="the simulator shows none; name rollout.simulator.cameras"):
        policy.prompt(Observation((), np.zeros(3, np.float32), "Push"))
