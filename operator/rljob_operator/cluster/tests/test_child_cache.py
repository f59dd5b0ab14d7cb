"""The cache of children: whatever is lost on the way, it ends as the server is."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.cluster.child_cache import ChildCache
from rljob_operator.vocabulary.key import Key

JOB = Key("default", "job")


def pod(name: str, version: int, job: str | None = "job", **metadata: Any) -> dict[str, Any]:
    labels = {"rljob.dev/job": job} if job else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": labels,
            "resourceVersion": str(version),
            **metadata,
        }
    }


def names_of(children: Iterable[dict[str, Any]]) -> list[str]:
    return [child["metadata"]["name"] for child in children]


def names(cache: ChildCache) -> list[str]:
    return names_of(cache.of(JOB))


def test_a_list_replaces_everything_and_names_the_jobs_that_changed() -> None:
    cache = ChildCache()
    assert cache.replace([pod("a", 1), pod("b", 2), pod("x", 3, job="other")], "3") == {JOB, Key("default", "other")}
    assert names(cache) == ["a", "b"]
    assert cache.replace([pod("a", 1), pod("x", 3, job="other")], "9") == {JOB}, "b was deleted unseen"
    assert names(cache) == ["a"]
    assert cache.replace([pod("a", 1), pod("x", 3, job="other")], "12") == set()


def test_events_change_one_child() -> None:
    cache = ChildCache()
    cache.replace([], "1")
    assert cache.update("ADDED", pod("a", 2)) == JOB
    assert cache.update("MODIFIED", pod("a", 3)) == JOB
    assert cache.update("DELETED", pod("a", 4)) == JOB
    assert (names(cache), cache.version) == ([], 4)


def test_a_child_relabelled_has_departed_from_its_job() -> None:
    """Whatever the new label: the last state seen under the old one is kept, as of one that was deleted."""
    for job, there in (("other", ["a"]), (None, [])):
        cache = ChildCache()
        cache.replace([pod("a", 1)], "1")
        assert cache.update("MODIFIED", pod("a", 2, job=job)) == JOB
        assert (names(cache), cache.departed(JOB, "a")) == ([], pod("a", 1))
        assert names_of(cache.of(Key("default", "other"))) == there
        assert cache.update("MODIFIED", pod("a", 3)) in (JOB, Key("default", "other"))
        assert (names(cache), cache.departed(JOB, "a")) == (["a"], None)


def test_a_deletion_counts_for_the_job_that_the_child_was_known_under() -> None:
    cache = ChildCache()
    cache.replace([pod("a", 1)], "1")
    assert cache.update("DELETED", pod("a", 2, job=None)) == JOB
    assert names(cache) == [] and cache.departed(JOB, "a") == pod("a", 2, job=None)


def test_bookmarks_and_strangers_move_the_version_only() -> None:
    cache = ChildCache()
    assert cache.update("BOOKMARK", {"metadata": {"resourceVersion": "7"}}) is None
    assert cache.update("ADDED", pod("stranger", 8, job=None)) is None
    assert cache.version == 8


def test_what_was_created_is_known_before_the_watch_and_reported_once() -> None:
    cache = ChildCache()
    cache.replace([], "5")
    cache.note(pod("a", 6))
    assert names(cache) == ["a"]
    assert cache.update("ADDED", pod("a", 6)) is None
    assert cache.update("MODIFIED", pod("a", 7)) == JOB


def test_an_answer_that_comes_after_the_watch_is_past_it_leaves_no_ghost() -> None:
    cache = ChildCache()
    cache.replace([], "5")
    cache.update("ADDED", pod("a", 6))
    cache.update("DELETED", pod("a", 8))
    cache.note(pod("a", 6))
    assert names(cache) == []


def test_a_list_older_than_a_create_does_not_lose_it() -> None:
    cache = ChildCache()
    cache.replace([], "5")
    cache.note(pod("a", 9))
    cache.replace([pod("b", 4)], "7")
    assert names(cache) == ["a", "b"]
    cache.replace([pod("b", 4)], "10")
    assert names(cache) == ["b"], "by then it was deleted"


def test_a_deletion_of_the_former_bearer_of_a_name_does_not_take_the_new_one() -> None:
    cache = ChildCache()
    cache.replace([pod("a", 3)], "5")
    cache.note(pod("a", 9))
    assert cache.update("DELETED", pod("a", 8)) is None
    assert names(cache) == ["a"]


def test_the_last_state_of_what_was_deleted_is_kept_until_its_name_comes_again() -> None:
    cache = ChildCache()
    cache.replace([pod("a", 1), pod("b", 2)], "2")
    assert cache.departed(JOB, "a") is None
    cache.update("DELETED", pod("a", 3))
    cache.replace([], "5")
    assert [cache.departed(JOB, name) for name in "ab"] == [pod("a", 3), pod("b", 2)], "b went unseen, as known before"
    cache.update("ADDED", pod("a", 6))
    assert cache.departed(JOB, "a") is None


def test_the_oldest_of_the_departed_are_forgotten() -> None:
    cache = ChildCache(most_departed=2)
    for version, name in enumerate("abc", start=1):
        cache.update("ADDED", pod(name, 2 * version))
        cache.update("DELETED", pod(name, 2 * version + 1))
    assert [cache.departed(JOB, name) is not None for name in "abc"] == [False, True, True]


# A history of the server: each step creates, changes or deletes one of three pods.
HISTORIES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "delete"])), max_size=30)


@given(HISTORIES, st.data())
def test_after_any_gap_the_cache_is_as_the_server(history: list[tuple[str, str]], data: st.DataObject) -> None:
    """Some events reach the cache late by a list, which shows the server at that moment."""
    server: dict[str, int] = {}
    cache = ChildCache()
    cache.replace([], "0")
    for version, (name, act) in enumerate(history, start=1):
        existed = name in server
        if act == "put":
            server[name] = version
            if not existed and data.draw(st.booleans(), "the answer comes before the event"):
                cache.note(pod(name, version))
            type_ = "MODIFIED" if existed else "ADDED"
        elif existed:
            del server[name]
            type_ = "DELETED"
        else:
            continue
        if data.draw(st.booleans(), "the watch is down: list instead"):
            cache.replace([pod(name, version) for name, version in server.items()], str(version))
        else:
            cache.update(type_, pod(name, version))
        assert {child["metadata"]["name"]: int(child["metadata"]["resourceVersion"]) for child in cache.of(JOB)} == (
            server
        )
