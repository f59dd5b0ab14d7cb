"""Is the data in a place that can be read?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import DatasetSpec
from rljob_api.vocabulary.data_url import folder_problem_of, hub_data, problem_of, scheme_of, without_secrets
from rljob_api.vocabulary.problem import Problem


def check_urls(subject: Subject) -> Iterator[Problem]:
    """The form of URLs; nothing is looked up."""
    data = subject.spec.data
    for kind, datasets in (("train", data.train), ("validation", data.validation)):
        for i, dataset in enumerate(datasets):
            if scheme_of(dataset.path) is not None and (result := problem_of(dataset.path)):
                yield problem(f"spec.data.{kind}[{i}].path", without_secrets(dataset.path), *result)
            else:
                yield from _check_split(dataset, f"spec.data.{kind}[{i}]", is_named=kind == "validation")


def _check_split(dataset: DatasetSpec, at: str, *, is_named: bool) -> Iterator[Problem]:
    """Subset and split are of whole data sets of the Hub. is_named: whether the split has no default."""
    hub = hub_data(dataset.path)
    if hub is None or hub.files is not None:
        for name in ("subset", "split"):
            if getattr(dataset, name) is not None:
                message = "only a data set of the Hub that is named as a whole is read by subset and split"
                yield problem(f"{at}.{name}", getattr(dataset, name), message, "Leave it out: path names the files.")
    elif is_named and dataset.split is None:
        message = "validation data is a split of its own, and none is named"
        yield problem(f"{at}.split", None, message, "Write the split, such as test.")


def check_dataset_weights(subject: Subject) -> Iterator[Problem]:
    """Shares of data sets."""
    data = subject.spec.data
    for i, dataset in enumerate(data.validation):
        if dataset.weight is not None:
            message = "every row of validation data is read, so nothing is drawn by weight"
            yield problem(f"spec.data.validation[{i}].weight", dataset.weight, message, "Leave it out.")
    weights = [dataset.weight for dataset in data.train]
    if not any(weight is not None for weight in weights):
        return
    for i, weight in enumerate(weights):
        if weight is None:
            message = "other data sets have a weight, and this one has none"
            yield problem(f"spec.data.train[{i}].weight", None, message, "Write one, 0 to draw nothing from here.")
    if not any(weight is None or weight > 0 for weight in weights):
        message = "every weight is 0, so there is nothing to draw from"
        yield problem("spec.data.train", weights, message, "Give at least one data set a weight above 0.")


def check_stores(subject: Subject) -> Iterator[Problem]:
    """The form of URLs of folders: of weights, and of the job's own store."""
    spec = subject.spec
    places = [(f"spec.models[{i}].path", model.path) for i, model in enumerate(spec.models)]
    places.append(("spec.checkpoint.initFrom", spec.checkpoint.init_from or ""))
    result = [(path, place) for path, place in places if scheme_of(place) is not None]
    if spec.object_store is not None:
        result.append(("spec.storage.objectStore.uri", spec.object_store.uri))
    for path, place in result:
        if wrong := folder_problem_of(place):
            yield problem(path, without_secrets(place), *wrong)
