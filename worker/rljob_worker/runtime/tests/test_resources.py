from rljob_worker.runtime.resources import why_no_tokenizer


def test_a_model_without_tokenizer_says_what_is_there_and_what_is_needed(tmp_path):
    assert "which holds nothing; it needs tokenizer.json" in why_no_tokenizer(str(tmp_path), OSError("x"))
    (tmp_path / "config.json").touch()
    assert f"{tmp_path}, which holds config.json;" in why_no_tokenizer(str(tmp_path), OSError("x"))


def test_a_name_that_nobody_knows_is_no_directory_and_not_on_the_hub():
    said = why_no_tokenizer("qwen/typo", OSError("We could not connect\nand more"))
    assert said.startswith("'qwen/typo' is no directory beside the job's YAML")
    assert "We could not connect; correct the path" in said and "and more" not in said
