from rljob_worker.data.objects.byte_cache import ByteCache


def find(cache, key, size):
    """What the cache hands out, and whether it had to be made."""
    made = []
    found = cache.find_or_make(key, lambda: made.append(key) or (key, size), lambda it: it[1])
    return found, bool(made)


def test_what_was_used_last_stays_within_the_bytes():
    cache = ByteCache(10)
    assert find(cache, "a", 4) == (("a", 4), True)
    assert find(cache, "b", 4) == (("b", 4), True)
    assert find(cache, "a", 4) == (("a", 4), False)
    assert find(cache, "c", 4) == (("c", 4), True)  # 12 bytes: b goes, which was used longest ago
    assert [find(cache, key, 4)[1] for key in "ac"] == [False, False]
    assert find(cache, "b", 4)[1]


def test_what_is_larger_than_all_of_it_is_handed_out_and_not_kept():
    cache = ByteCache(10)
    assert find(cache, "huge", 11) == (("huge", 11), True)
    assert find(cache, "huge", 11) == (("huge", 11), True)
    assert find(cache, "a", 10)[1] and not find(cache, "a", 10)[1]
