from rljob_worker.runtime.lead import step_words


def test_a_step_is_one_line_with_the_figures_it_has():
    metrics = {"reward/mean": 0.212345, "time/step_seconds": 1.3, "data/bytes_total": 7.0}
    assert step_words(3, 40, metrics) == "step 3/40: reward 0.2123, seconds 1.3"
