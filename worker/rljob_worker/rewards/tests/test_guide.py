"""The user guide's rewards, taken from its page, run as a job runs them."""

import re
from pathlib import Path

import pytest
import yaml

from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.rewards.running.tests.test_runner import Spec

GUIDE = Path(__file__).parents[4] / "docs" / "writing-a-reward.md"


@pytest.fixture
def folder(tmp_path):
    """The guide's Python files, under the names in their first line."""
    for name, code in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", GUIDE.read_text(), re.DOTALL):
        (tmp_path / code).write_text(name)
    return tmp_path


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def rows(*responses):
    return [{"prompt": "6 * 7?", "response": response, "answer": "42", "source": "guide"} for response in responses]


def test_the_reward_of_the_guide(folder):
    (listed,) = yaml.safe_load(blocks("yaml")[0])["rewards"]
    spec = Spec(
        listed["run"],
        listed["name"],
        listed["column"],
        listed["weight"],
        listed["timeoutSeconds"],
        options=listed["options"],
    )
    with RewardRunner([spec], 1, [folder]) as runner:
        result = runner.score(rows("It is 42", "It is 41", "well " * 19 + "42"))
    # limit 10: 3 words full, wrong answer nothing, 20 words half
    assert result.total.tolist() == [1.0, 0.0, 0.5]
    assert result.metrics["reward/brief/right"].value == pytest.approx(2 / 3)


def test_the_async_reward_of_the_guide(folder):
    with RewardRunner([Spec("my_judge:polite")], 1, [folder]) as runner:
        assert runner.score(rows("Please!", "No.")).total.tolist() == [1.0, 0.0]


def test_the_rewards_of_steps_of_the_guide(folder):
    with RewardRunner([Spec("my_steps:sums", spread="Steps")], 1, [folder]) as runner:
        result = runner.score(rows("1+2=3\nso\n3+4=8", "none"))
    # lines of six, three and five characters, of which the first is true and the last is not
    assert result.total.tolist() == [0.0, 0.0]
    assert result.steps == {0: [[(6, 1.0), (14, -1.0)], []]}


def test_the_guides_way_to_try_a_reward(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    exec(blocks("python")[-1], {})


def test_the_guide_lists_every_shipped_reward():
    import rljob_worker.rewards as shipped

    functions = [name for name in shipped.__all__ if name.islower()]
    assert [name for name in functions if f"rljob_worker.rewards:{name}`" not in GUIDE.read_text()] == []
