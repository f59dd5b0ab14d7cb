"""The exit code and last words of a pod from those of its workers."""

import json

from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.launcher.pod_exit import Exit, first_cause, pod_exit_code
from rljob_worker.process.child import exit_code
from rljob_worker.process.last_words import MAX_BYTES, LastWords, read_last_words


def exits(*pairs):
    return [Exit(f"w{n}", code, at) for n, (code, at) in enumerate(pairs)]


def test_any_code_outranks_75_within_the_settle_time():
    assert pod_exit_code(exits((75, 0.0), (65, 1.9), (70, 1.95))) == 65
    assert pod_exit_code(exits((75, 0.0), (65, 2.1))) == 75


def test_the_first_of_several_causes_speaks():
    assert first_cause(exits((70, 1.0), (65, 0.5), (75, 0.0))).name == "w1"


def test_an_abort_after_a_lost_peer_is_only_its_echo():
    assert pod_exit_code(exits((75, 0.0), (134, 0.1))) == 75
    assert pod_exit_code(exits((134, 0.0), (75, 0.1))) == 134
    assert pod_exit_code(exits((75, 0.0), (134, 0.1), (139, 0.2))) == 139


def test_stopped_and_done_are_no_failures():
    assert first_cause(exits((0, 0.0), (76, 0.1))) is None
    assert pod_exit_code(exits((0, 0.0), (76, 0.1))) == 76
    assert pod_exit_code(exits((0, 0.0), (0, 0.1))) == 0
    assert pod_exit_code(exits((76, 0.0), (75, 0.1))) == 75


def test_signals_are_spelt_as_kubernetes_does():
    assert [exit_code(-9), exit_code(3), exit_code(0)] == [137, 3, 0]


@given(st.lists(st.tuples(st.sampled_from([0, 64, 65, 70, 74, 75, 76, 134, 137]), st.floats(0, 2))))
def test_the_verdict_does_not_depend_on_the_order_of_arrival(pairs):
    assert pod_exit_code(exits(*pairs)) == pod_exit_code(list(reversed(exits(*pairs))))


@given(st.text(max_size=9000), st.integers(0, 255), st.none() | st.integers(0, 10**9))
def test_last_words_fit_and_keep_their_numbers(tmp_path_factory, cause, code, checkpoint):
    text = LastWords(code, 12, checkpoint, cause, "train-0-0").to_json()
    assert len(text.encode()) <= MAX_BYTES
    path = tmp_path_factory.mktemp("words") / "words.json"
    path.write_text(text)
    last_words = read_last_words(path)
    assert (last_words.code, last_words.step, last_words.checkpoint) == (code, 12, checkpoint)
    if len(json.dumps(cause)) < MAX_BYTES - 200:
        assert last_words.cause == cause


def test_half_a_surrogate_pair_is_spelt_out():
    said = json.loads(LastWords(70, cause="cannot score '\ud83d' but 😀").to_json())
    assert said["cause"] == "cannot score '\\ud83d' but 😀"


def test_only_values_of_the_right_type_are_read(tmp_path):
    path = tmp_path / "words.json"
    path.write_text('{"code": 65, "step": "4", "checkpoint": [], "cause": {"a": 1}, "worker": "w"}')
    assert read_last_words(path) == LastWords(65, worker="w")
    path.write_text("[" * 200_000)
    assert read_last_words(path) is None


def test_what_is_not_ours_is_not_read(tmp_path):
    path = tmp_path / "words.json"
    assert read_last_words(path) is None
    path.write_text("OOM")
    assert read_last_words(path) is None
    path.write_text('["code"]')
    assert read_last_words(path) is None
