"""`rljob new`: a job that suits a model and data."""

import json

import pytest

from rljob_api.loading.starter import StarterInputs
from rljob_worker.cli.new.starter_job import NamedParts, beginning_of, fitting, reward_for, room_for
from rljob_worker.cli.new.writing import examples_folder, files_beside, write_example, write_starter
from rljob_worker.cli.validate import verdict_on
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.rehearsal.tests import good_job


def test_a_job_on_ones_own_data_and_model_is_valid_as_it_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"Question": "a b c", "final_answer": f"work\n#### {i}"} for i in range(9)]
    good_job.write(tmp_path, {"data/mine.jsonl": good_job.lines(rows)})
    assert write_starter("mine", "model", "data/mine.jsonl", None) == 0
    verdict = verdict_on(tmp_path / "mine.yaml", ())
    assert verdict.problems == (), verdict.text()
    beginning = beginning_of("model", "data/mine.jsonl", None)
    assert (beginning.prompt_column, beginning.answer_column, beginning.batch_size) == ("Question", "final_answer", 8)
    # "<|user|> a b c <|end|>" has five tokens, and the model reads 4096
    assert (beginning.reward, beginning.max_prompt_tokens) == ("rljob_worker.rewards:final_number", 64)
    assert (beginning.max_response_tokens, beginning.max_positions) == (512, 4096)
    assert beginning.applies_template
    assert "Hub" not in capsys.readouterr().out
    assert write_starter("far", "modle", "data/mine.jsonl", None) == 0
    assert "modle is not a directory here: it is taken for a name of the Hub" in capsys.readouterr().out


def test_chat_messages_and_models_without_a_template_are_taken_as_they_are(tmp_path):
    chat = [{"messages": [{"role": "user", "content": "a"}], "answer": "x"}] * 3
    good_job.write(tmp_path, {"chat.jsonl": good_job.lines(chat), "bare/tokenizer.json": good_job.tokenizer_json()})
    assert not beginning_of(str(tmp_path / "model"), str(tmp_path / "chat.jsonl"), None).applies_template
    assert not beginning_of(str(tmp_path / "bare"), str(tmp_path / "data/train.jsonl"), None).applies_template
    assert beginning_of("owner/hub-model", str(tmp_path / "data/train.jsonl"), None).applies_template


def test_columns_within_records_are_taken_where_no_other_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{i} eggs?", "meta": {"truth": {"answer": str(i)}}} for i in range(8)]
    good_job.write(tmp_path, {"data/train.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    write_starter("small", "model", "data/train.jsonl", None)
    assert "column: meta.truth.answer" in (tmp_path / "small.yaml").read_text()
    verdict = verdict_on(tmp_path / "small.yaml", ())
    assert verdict.problems == (), verdict.text()


def test_a_problem_of_ones_own_has_a_reward_and_columns_of_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"frage": f"{i} eggs?", "meta": {"price": i}} for i in range(8)]
    mine = {"shop.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}
    good_job.write(
        tmp_path, mine | {"my_reward.py": "def Short_1(row):\n    return 1.0 / (1 + len(row['response']))\n"}
    )
    named = {"prompt": "frage", "reward": "my_reward:Short_1"}
    write_starter("plain", "model", "shop.jsonl", None, **named)
    write_starter("priced", "model", "shop.jsonl", None, **named, answer="meta.price")
    for name in ("plain", "priced"):
        verdict = verdict_on(tmp_path / f"{name}.yaml", ())
        assert verdict.problems == (), verdict.text()
    plain, priced = ((tmp_path / f"{name}.yaml").read_text() for name in ("plain", "priced"))
    assert "- name: short_1\n      run: my_reward:Short_1   # a function of a module beside this file\n\n" in plain
    assert "column: meta.price" in priced and "promptColumn: frage" in priced


def test_columns_that_nobody_can_guess_are_listed_with_the_option_that_names_one(tmp_path):
    good_job.write(tmp_path, {"odd.jsonl": json.dumps({"frage": "a", "preis": "1"})})
    odd = str(tmp_path / "odd.jsonl")
    with pytest.raises(BadData, match="looks like prompts; it has frage, preis, .*: name one with --prompt$"):
        beginning_of("m", odd)
    with pytest.raises(BadData, match="name one with --answer, or your own function with --reward$"):
        beginning_of("m", odd, named=NamedParts(prompt="frage"))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"prompt": "fragge", "reward": "a:b"}, "no column 'fragge'; did you mean 'frage'"),
        ({"prompt": "frage", "answer": "price"}, "no column 'price'"),
        ({"prompt": "frage", "answer": "price", "reward": "a:b"}, "no column 'price'"),
        ({"prompt": "frage", "reward": "short"}, "--reward short: write module:function"),
        ({"prompt": "frage", "reward": "mine:"}, "--reward mine:: write module:function"),
    ],
)
def test_a_part_that_is_not_there_is_named(named, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good_job.write(tmp_path, {"odd.jsonl": json.dumps({"frage": "a", "preis": "1"})})
    with pytest.raises((BadData, InvalidJob), match=said):
        write_starter("mine", "model", "odd.jsonl", None, **named)
    assert not (tmp_path / "mine.yaml").exists()


def test_parts_of_data_go_with_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidJob, match="--prompt, --answer and --reward say what is in the data"):
        write_starter("mine", None, None, None, reward="a:b")


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["3*4=12\n#### 12", "#### 7"], "final_number"),
        (["42", "-1,000.5"], "math_answer"),
        (["\\frac12", "$x$", "yes"], "math_answer"),
        (["Paris", "Rome", "7"], "exact_match"),
    ],
)
def test_the_reward_follows_from_the_answers(answers, reward):
    assert reward_for(answers) == reward


@pytest.mark.parametrize(("tokens", "room"), [(1, 64), (42, 64), (43, 128), (400, 1024)])
def test_prompts_have_room_to_be_half_as_long_again(tokens, room):
    assert room_for(tokens) == room


@pytest.mark.parametrize(
    ("limit", "longest", "prompt", "response"),
    [
        (None, 100, 256, 512),
        (1024, 100, 256, 512),  # the model reads more than both
        (512, 42, 64, 448),
        (64, 5, 32, 32),  # as much for the one as for the other
        (64, 40, 40, 24),  # more for the prompt, where a prompt needs it
        (64, 63, 63, 1),
        (64, 100, 32, 32),  # a prompt that never fits is left out
        (512, None, 256, 256),
        (4096, None, 512, 512),
    ],
)
def test_lengths_are_what_the_model_has_positions_for(limit, longest, prompt, response):
    begun = fitting(StarterInputs(max_positions=limit), longest)
    assert (begun.max_prompt_tokens, begun.max_response_tokens) == (prompt, response)


def test_a_job_for_a_model_of_few_positions_is_valid_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good_job.write(tmp_path, {"model/config.json": json.dumps(good_job.CONFIG | {"max_position_embeddings": 48})})
    write_starter("small", "model", "data/train.jsonl", None)
    verdict = verdict_on(tmp_path / "small.yaml", ())
    assert verdict.problems == (), verdict.text()
    text = (tmp_path / "small.yaml").read_text()
    assert "maxPromptTokens: 24" in text
    assert "maxResponseTokens: 24        # the model reads 48 tokens, the prompt's among them" in text


def test_an_example_is_written_as_of_here_and_never_over_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_example("gsm8k-qwen3")
    said = capsys.readouterr().out
    assert said == "wrote gsm8k-qwen3.yaml; `rljob run gsm8k-qwen3.yaml` runs it\n"
    text = (tmp_path / "gsm8k-qwen3.yaml").read_text()
    assert "hf://datasets/openai/gsm8k" in text and "rljob run gsm8k-qwen3.yaml" in text
    write_example("gsm8k-qwen3")
    assert capsys.readouterr().out == said, "the same text is there"
    (tmp_path / "gsm8k-qwen3.yaml").write_text(text + "# mine")
    with pytest.raises(InvalidJob, match="gsm8k-qwen3.yaml exists already"):
        write_example("gsm8k-qwen3")
    assert (tmp_path / "gsm8k-qwen3.yaml").read_text().endswith("# mine")


@pytest.mark.parametrize(
    ("example", "names"),
    [("arithmetic-grpo", []), ("custom-stage", ["custom_stage.py"]), ("arithmetic-mixture", ["sums.jsonl"])],
)
def test_an_example_comes_with_the_files_that_it_names(example, names):
    folder = examples_folder()
    beside = files_beside(folder, (folder / f"{example}.yaml").read_text())
    assert [path.name for path in beside] == names


def test_data_that_are_not_there_are_missed(tmp_path):
    with pytest.raises(BadData, match="no data set at "):
        beginning_of("m", str(tmp_path / "gone.jsonl"), None)
