"""Policies that are cloned, and how."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import torch

from rljob_worker.embodied.action_policy import action_policy
from rljob_worker.embodied.observation import Observation
from rljob_worker.engines.models import load_policy
from rljob_worker.tiny.__main__ import main
from rljob_worker.tiny.acting import plane
from rljob_worker.tiny.acting.cloning import Cloning, Shown, clone
from rljob_worker.tiny.acting.make import encoded, plane_decisions, write_state_policy
from rljob_worker.vision.fused_processing import shared_fused_processor


def test_a_policy_that_sees_is_made_and_can_say_all_that_the_script_does(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    main(["--reach-pictures", "--quick", "--out", str(tmp_path / "made")])
    folder = str(tmp_path / "made" / "model")
    assert load_policy(folder, torch.float32, torch.device("cpu")).config.model_type == "openvla_oft"
    policy = action_policy(folder, "plane", 4)
    for shown in islice(plane_decisions(0), 20):
        tokens = policy.action_tokens.tokens(shown.actions)
        np.testing.assert_allclose(policy.actions(tokens), shown.actions, atol=1e-6)
    prompt = policy.prompt(shown.observation)
    unknown = policy.tokenizer.unk_token_id
    assert len(prompt) == 1 + 16 + 16 and unknown not in prompt  # <s>, a picture, words and marks
    black = encoded(np.zeros((plane.SIDE, plane.SIDE, 3), np.uint8))
    assert not shared_fused_processor(folder, 16).patches(black).pixel_values.any()  # nothing is seen where nothing is


def test_cloning_teaches_what_is_shown(tmp_path: Path) -> None:
    write_state_policy(tmp_path, 0)
    actions = np.tile([1.0, 0.0, -1.0, 0.5], (8, 1))
    losses: list[float] = []

    def shown():
        while True:
            yield Shown(Observation((), np.zeros(39, np.float32), "reach"), actions)

    settings = Cloning(steps=12, rows_per_step=4, learning_rate=2e-2)
    clone(tmp_path, shown(), settings, report=lambda _, loss: losses.append(loss))
    assert losses[-1] < 0.2 * losses[0]
    again = load_policy(str(tmp_path), torch.float32, torch.device("cpu"))
    with torch.no_grad():
        likeliest = again(states=torch.zeros(1, 39)).logits[0].argmax(-1).numpy()
    np.testing.assert_allclose(action_policy(str(tmp_path), None, 8).actions(likeliest), actions, atol=1e-6)
