"""Conversations that tiny models read."""

import itertools
import random

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from rljob_api.v1alpha1 import AgentSpec
from rljob_worker.conversations.history import History
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.run_functions.team_play import shown_messages
from rljob_worker.tiny.conversations import calculator, guessing_game, team
from rljob_worker.tiny.conversations.guessing_game import HIGHER, LOWER, NUMBERS, OPTIMAL, possible, success
from rljob_worker.tiny.conversations.spoken import Spoken, collate_spoken, said
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.problems import WordProblem
from rljob_worker.tiny.recipe import conversations, quick
from rljob_worker.tiny.tokenizer import train_tokenizer

PROBLEMS = calculator.products(0, 64, 2).train


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(calculator.spelling(PROBLEMS, 0), has_tools=True)


def test_labels_are_what_the_assistant_says_and_the_end_of_its_turns(tokenizer):
    asked, answered = said("user", "How many?"), said("tool", "7")
    spoken = Spoken((asked, said("assistant", calculator.call_of("1*2+5")), answered, said("assistant", "#### 7")))
    tokens, labels = collate_spoken(tokenizer, [spoken, Spoken((asked, said("assistant", "#### 7")))])
    assert tokenizer.decode(labels[0][labels[0] >= 0]) == f"{calculator.call_of('1*2+5')}<|end|>#### 7<|end|>"
    assert tokenizer.decode(labels[1][labels[1] >= 0]) == "#### 7<|end|>"
    assert (tokens[labels >= 0] == labels[labels >= 0]).all()


def test_what_is_read_is_what_a_conversation_renders(tokenizer):
    problem = WordProblem("*+", 27, 48, 35)
    question = problem.question("Mia", "pens")
    spoken = Spoken(calculator.calculated(problem, question), (calculator.SCHEMA,))
    renderer = ChatRenderer(tokenizer)
    renderer.require_tools()
    (asked, called, answered, last), tools = spoken.messages, list(spoken.tools)
    turn = tokenizer.encode(f"{called['content']}<|end|>")
    message = renderer.parse(turn, tools=tools)
    assert message.tool_calls[0].arguments == {"expression": "27*48+35"} and message.finish_reason == "Stop"
    before = [asked, message.as_message()]
    rendered = [*renderer.opening([asked], tools), *turn, *renderer.following(History(before), [answered], tools)]
    rendered += tokenizer.encode(f"{last['content']}<|end|>")
    tokens, _ = collate_spoken(tokenizer, [spoken])
    assert tokens[0].tolist() == rendered
    assert tokenizer.decode(rendered).startswith("<|system|>calculator(expression)<|user|>Mia buys 27 boxes")


def test_a_third_of_the_conversations_with_a_tool_call_it_with_the_problem():
    read = list(itertools.islice(calculator.conversations(PROBLEMS, 0), 2000))
    assert read == list(itertools.islice(calculator.conversations(PROBLEMS, 0), 2000))
    with_tool = [spoken for spoken in read if spoken.tools]
    calling = [spoken for spoken in with_tool if len(spoken.messages) == 4]
    # 1,500 with a tool: one standard deviation of the share is sqrt(2 / 9 / 1500) = 0.012
    assert abs(len(calling) / len(with_tool) - 1 / 3) < 0.05
    assert all(len(spoken.messages) == 2 for spoken in read if not spoken.tools)
    for spoken in calling:
        expression = spoken.messages[1]["content"].split('"')[-2]
        assert str(eval(expression)) == spoken.messages[2]["content"] == spoken.messages[3]["content"][5:]


def test_no_product_is_held_out_and_read():
    products = calculator.products(3, 500, 100)
    assert (len(products.train), len(products.validation)) == (500, 100)
    assert not set(products.train) & set(products.validation)
    assert products == calculator.products(3, 500, 100) != calculator.products(4, 500, 100)


def test_answers_leave_the_numbers_between_them():
    assert possible(()) == NUMBERS
    assert possible(((8, HIGHER), (20, LOWER), (12, HIGHER))) == range(13, 20)
    assert not possible(((8, HIGHER), (9, LOWER)))


def bisecting(games):
    return [[float(n == (possible(game)[0] + possible(game)[-1]) // 2) for n in NUMBERS] for game in games]


def consistent(games):
    return [[(n in possible(game)) / len(possible(game)) for n in NUMBERS] for game in games]


def stubborn(games):
    """Half of the guesses are 7; the others are no number."""
    return [[0.5 * (n == 7) for n in NUMBERS] for _ in games]


@pytest.mark.parametrize(
    ("player", "won", "least"),
    # bisection has 1 + 2 + 4 + 8 numbers; 7 is one number, guessed first or never: what is no number ends the game
    [(bisecting, 15 / 31, 1e-9), (stubborn, 0.5 / 31, 1e-9)],
)
def test_success_is_computed_over_all_numbers_and_guesses(player, won, least):
    result = success(player, least)
    assert result.probability == pytest.approx(won) and result.left_out == 0
    assert pytest.approx(15 / 31) == OPTIMAL


def test_games_that_are_not_followed_are_counted():
    # the games after a first guess of 7 have probability 0.5: 30 of 31 numbers would go on
    result = success(stubborn, least=0.6)
    assert result.probability == pytest.approx(0.5 / 31) and result.left_out == pytest.approx(0.5 * 30 / 31)


@pytest.mark.slow
def test_who_guesses_what_answers_leave_wins_less_often_than_bisection():
    assert success(consistent).probability == pytest.approx(0.360, abs=0.001)


def test_games_of_the_corpus_are_of_three_kinds_and_end_when_they_are_won():
    games = [spoken.messages for spoken in itertools.islice(guessing_game.conversations(0), 3000)]
    guesses = [[int(message["content"]) for message in game if message["role"] == "assistant"] for game in games]
    assert all(1 <= len(of_game) <= 4 for of_game in guesses)
    # a quarter by bisection, and one in 31 of the others: 0.25 + 0.75 / 31 = 0.274, with a deviation of 0.008
    assert abs(sum(of_game[0] == 16 for of_game in guesses) / 3000 - 0.274) < 0.035
    hints = {message["content"] for game in games for message in game[1:] if message["role"] == "user"}
    assert hints == {HIGHER, LOWER}


def test_a_checker_reads_what_a_team_shows_it_and_repeats_the_answer_or_guesses():
    problem = WordProblem("*+", 3, 4, 5)
    agent = AgentSpec(name="checker")
    (shown,) = shown_messages(agent, [said("user", "How many?")], [(team.SOLVER, problem.worked())])
    assert shown == said("user", team.shown_to_checker("How many?", problem.worked()))
    rng = random.Random(0)
    answers = [team.checked(problem, "3*4=12\n12+5=17\n#### 17", rng) for _ in range(900)]
    # one standard deviation of the share is sqrt(2 / 9 / 900) = 0.016
    assert abs(answers.count("right\n#### 17") / 900 - team.AGREES_SHARE) < 0.06
    guesses = [int(answer.removeprefix("wrong\n#### ")) for answer in answers if answer.startswith("wrong")]
    assert set(guesses) == set(range(13, 22))


def test_the_model_of_a_team_has_been_solver_twice_as_often_as_checker():
    read = list(itertools.islice(team.conversations((WordProblem("*+", 3, 4, 5), WordProblem("++", 2, 2, 2)), 0), 1500))
    solved = [spoken.messages[1]["content"] for spoken in read if "solver: " not in spoken.messages[0]["content"]]
    # a deviation of the shares is 0.012 and 0.016
    assert abs(len(solved) / 1500 - team.SOLVER_SHARE) < 0.05
    assert abs(sum("=" in answer for answer in solved) / len(solved) - team.WORKED_SHARE) < 0.06


@pytest.mark.parametrize("subject", ["Calculator", "GuessingGame", "Team"])
def test_a_recipe_of_conversations_makes_a_model_whose_template_has_tools(subject, tmp_path):
    recipe = conversations(quick(), subject)
    assert recipe.key() != quick().key()
    make_model(recipe, tmp_path)
    ChatRenderer(AutoTokenizer.from_pretrained(tmp_path / "model")).require_tools()
    columns = {
        "Calculator": {"question", "answer"},
        "GuessingGame": {"question", "number"},
        "Team": {"question", "answer"},
    }
    assert set(pq.read_table(tmp_path / "train.parquet").column_names) == columns[subject]


def test_calls_are_one_token_besides_their_digits(tokenizer):
    digits = random.Random(0).sample("123456789", 6)
    expression = "{}{}*{}{}+{}{}".format(*digits)
    assert len(tokenizer.encode(calculator.call_of(expression))) == 1 + 8 + 1
