"""Who sleeps after a step has generated, and how deeply."""

from rljob_worker.engines.rollout.tests.scripted import ScriptedEngine
from rljob_worker.runtime.memory_phases import end_generation, is_worth_sleeping

MIB = 1 << 20


class Holding(ScriptedEngine):
    """An engine with a cache and weights of these sizes."""

    def __init__(self, cache, weights):
        super().__init__(lambda row_id, sampling: [])
        self.bytes = {"Cache": cache, "Weights": cache + weights}
        self.slept = []

    def held_bytes(self, depth):
        return self.bytes[depth]

    def sleep(self, depth):
        self.slept.append(depth)


def test_little_memory_is_not_given_back():
    assert not is_worth_sleeping(64 * MIB - 1) and is_worth_sleeping(64 * MIB)


def test_weights_are_dropped_only_where_others_come():
    for gets_weights, expected in ((True, ["Weights"]), (False, [])):
        engine = Holding(cache=MIB, weights=100 * MIB)
        end_generation([engine], gets_weights=gets_weights)
        assert engine.slept == expected
    engine = Holding(cache=100 * MIB, weights=0)
    end_generation([engine], gets_weights=False)
    assert engine.slept == ["Cache"]
