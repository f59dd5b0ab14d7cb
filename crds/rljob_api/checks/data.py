"""Is the data in a place that can be read?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.checks.subject import Subject, problem
from rljob_api.vocabulary.data_url import problem_of, scheme_of, without_secrets
from rljob_api.vocabulary.problem import Problem


def check_urls(subject: Subject) -> Iterator[Problem]:
    """The form of URLs; nothing is looked up."""
    data = subject.spec.data
    for kind, datasets in (("train", data.train), ("validation", data.validation)):
        for i, dataset in enumerate(datasets):
            if scheme_of(dataset.path) is not None and (found := problem_of(dataset.path)):
                yield problem(f"spec.data.{kind}[{i}].path", without_secrets(dataset.path), *found)
