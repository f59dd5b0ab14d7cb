"""Trains the examples to their targets: GRPO from three seeds and with an adapter, every other algorithm, the
disaggregated job, the asynchronous one with three seeds and a staleness of 0, 1 and 2, and the one whose answers have a
long tail of lengths, with and without `rollout.partial`; a conversation with a tool, with and without it; a game; a
team of two policies, and of two agents that one policy plays; a policy that sees, also with the pictures of others; a
policy that acts in a simulator.

    make learn                      # about 50 minutes on 2 cores
    python benchmarks/learn.py --only arithmetic-dapo

Every seed has a tiny model and problems of its own. Prints one line per run and exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class LearningTarget:
    """What a run must reach on held-out problems."""

    example: str
    seed: int
    rise: float
    final: float
    staleness: int | None = None
    """In place of the example's own `rollout.maxStaleness`."""
    waits: bool = False
    """Without the example's own `rollout.partial`."""
    above_without_tools: float | None = None
    """By how much the end is above that of a run without the example's own tools."""
    start: float = 1.0
    """What the run must begin with at most."""
    one_policy: bool = False
    """With one policy for all agents in place of the example's own."""
    chance: float | None = None
    """What the end must be within two standard errors of, on as many held-out problems with pictures of others."""


LONG_TAIL, CALCULATOR, GAME = "arithmetic-long-tail", "arithmetic-calculator", "guessing-game"
TEAM, SHAPES, REACH = "arithmetic-team", "shapes-counting", "reach-pictures"
READ = {
    LONG_TAIL: ("long", "--long-answers"),
    CALCULATOR: ("tools", "--calculator"),
    GAME: ("game", "--guessing-game"),
    TEAM: ("team", "--team"),
    SHAPES: ("shapes", "--shapes"),
    REACH: ("reach", "--reach-pictures"),
}
"""Examples whose models have read something of their own: name of the folder, option of `rljob_worker.tiny`."""

OTHERS = ("dapo", "gspo", "cpgd", "drgrpo", "rloo", "reinforce-plus-plus")
"""Algorithms with an example each."""

ONE_POLICY = "rollout.conversation.agents=[{name: solver, hears: [task]}, {name: checker}]"
"""The agents of the team's example, played by the policy `actor`."""

SERVED = {"reward-model": "reward-model", "judge": "judge"}
"""Examples whose rewards come from a service, and the folder of its model."""

TARGETS = [
    *(LearningTarget("arithmetic-grpo", seed, rise=0.30, final=0.75) for seed in (0, 1, 2)),
    LearningTarget("arithmetic-lora", 0, rise=0.30, final=0.60),
    LearningTarget("arithmetic-ppo", 0, rise=0.20, final=0.0),
    LearningTarget("arithmetic-disaggregated", 0, rise=0.20, final=0.0),
    *(LearningTarget("arithmetic-async", seed, 0.50, 0.94, staleness) for seed in (0, 1, 2) for staleness in (0, 1, 2)),
    *(LearningTarget(LONG_TAIL, 0, rise=0.50, final=0.94, waits=waits) for waits in (False, True)),
    *(LearningTarget(f"arithmetic-{name}", 0, rise=0.50, final=0.80) for name in OTHERS),
    LearningTarget("custom-algorithm", 0, rise=0.50, final=0.80),
    *(LearningTarget(f"arithmetic-{name}", 0, rise=0.20, final=0.0) for name in SERVED),
    LearningTarget(CALCULATOR, 0, rise=0.30, final=0.70, above_without_tools=0.30),
    # of the best that there is, 15 of 31 numbers
    LearningTarget(GAME, 0, rise=0.15, final=0.90, start=0.75),
    *(LearningTarget(TEAM, 0, rise=0.20, final=0.0, one_policy=one_policy) for one_policy in (False, True)),
    # the commonest of six answers, which are right equally often
    LearningTarget(SHAPES, 0, rise=0.30, final=0.80, chance=1 / 6),
    LearningTarget(REACH, 0, rise=0.40, final=0.55),
]

NUM_VALIDATION = 256
"""Held-out problems."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/learn"), help="models, data and run directories")
    parser.add_argument("--only", help="the name of one example")
    options = parser.parse_args()
    targets = [target for target in TARGETS if options.only in (None, target.example)]
    print(f"{'example':31} {'seed':>4} {'before':>7} {'after':>7} {'rise':>7} {'seconds':>8}  target")
    return 0 if all([learn(target, options.out) for target in targets]) else 1


def learn(target: LearningTarget, out: Path) -> bool:
    """Run one example from scratch; whether it reached its target."""
    read, option = READ.get(target.example, ("tiny", None))
    tiny = (out / f"{read}-{target.seed}").resolve()
    make_tiny = [sys.executable, "-m", "rljob_worker.tiny", "--out", str(tiny), "--seed", str(target.seed)]
    make_tiny += [] if option is None else [option]
    run(make_tiny, out)
    name = f"{target.example}-{target.seed}"
    ahead = []
    if target.staleness is not None:
        name = f"{name}-{target.staleness}"
        ahead = [f"rollout.maxStaleness={target.staleness}", "dataBuffer.memory=256Mi"]
    if target.waits:
        name = f"{name}-waits"
        ahead = ["rollout.partial=null"]
    models = [f"models.0.path={tiny}/model"]
    if target.example == TEAM:
        models.append(f"models.1.path={tiny}/model")
    if target.one_policy:
        name, models = f"{name}-shared", [f"models=[{{name: actor, path: {tiny}/model}}]", ONE_POLICY]
    overrides = [
        f"metadata.name={name}",
        f"seed={target.seed}",
        *models,
        *data_of(target, tiny),
        *ahead,
    ]
    if (model := SERVED.get(target.example.removeprefix("arithmetic-"))) is not None:
        run([*make_tiny, "--graders"], out)
        overrides.append(f"services.0.options.path={tiny}/{model}")
    started = time.monotonic()
    before, after = trained(target.example, name, overrides, out)
    if target.example == GAME:
        before, after = (part_of_optimal(model, out) for model in (tiny / "model", exported(name, out)))
    if target.chance is not None:
        before, after = accuracies(out / name, "validation/accuracy/shapes")
    reached = after - before >= target.rise and after >= target.final and before <= target.start
    if target.example == TEAM:
        policies = ("actor",) if target.one_policy else ("solver", "checker")
        reached = reached and all(differs(tiny / "model", exported(name, out, policy)) for policy in policies)
    shown = f"{name:31} {target.seed:4} {before:7.3f} {after:7.3f} {after - before:7.3f}"
    if target.chance is not None:
        _, others = accuracies(out / name, "validation/accuracy/exchanged")
        reached = reached and is_chance(others, target.chance)
        shown += f" (pictures of others {others:.3f})"
    if target.above_without_tools is not None:
        without = [f"metadata.name={name}-alone", *overrides[1:], "rollout.conversation.tools=[]"]
        _, alone = trained(target.example, f"{name}-alone", without, out)
        reached = reached and after - alone >= target.above_without_tools
        shown += f" (without tools {alone:.3f})"
    print(f"{shown} {time.monotonic() - started:8.0f}  {'reached' if reached else 'MISSED'}", flush=True)
    return reached


def data_of(target: LearningTarget, tiny: Path) -> list[str]:
    """Overrides that name the data; a simulator lists its tasks itself."""
    if target.example == REACH:
        return []
    others = [] if target.chance is None else [f"data.validation.1.path={tiny}/exchanged.parquet"]
    return [f"data.train.0.path={tiny}/train.parquet", f"data.validation.0.path={tiny}/validation.parquet", *others]


def trained(example: str, name: str, overrides: list[str], out: Path) -> tuple[float, float]:
    """First and last validation accuracy of a run of an example."""
    arguments = [part for override in overrides for part in ("--set", override)]
    yaml = EXAMPLES / f"{example}.yaml"
    run([sys.executable, "-m", "rljob_worker.cli", "run", str(yaml), "--runs-dir", str(out), *arguments], out)
    return accuracies(out / name)


def exported(name: str, out: Path, policy: str | None = None) -> Path:
    """The model of a run's last checkpoint. policy: of a job with several."""
    model = out / f"{name}-{policy or 'model'}"
    command = [sys.executable, "-m", "rljob_worker.cli", "export", name, str(model), "--runs-dir", str(out)]
    run(command + ([] if policy is None else ["--model", policy]), out)
    return model


def differs(one: Path, other: Path) -> bool:
    """Whether two models have other weights."""
    files = [(folder / "model.safetensors").read_bytes() for folder in (one, other)]
    # behind the header, whose length is its first eight bytes
    weights = [content[8 + int.from_bytes(content[:8], "little") :] for content in files]
    return weights[0] != weights[1]


def part_of_optimal(model: Path, out: Path) -> float:
    """How often a model wins the guessing game, over all numbers and all that it may say, over how often bisection
    does."""
    command = [sys.executable, "-m", "rljob_worker.tiny.conversations.exact_game", str(model)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    with (out / "learn.log").open("a") as log:
        log.write(done.stdout)
    return float(json.loads(done.stdout)["of_optimal"])


def is_chance(accuracy: float, chance: float) -> bool:
    """Whether it is within two standard errors of what somebody reaches who does not look."""
    return abs(accuracy - chance) <= 2 * (chance * (1 - chance) / NUM_VALIDATION) ** 0.5


def accuracies(run_dir: Path, metric: str = "validation/accuracy") -> tuple[float, float]:
    """First and last validation accuracy of a run."""
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    seen = [step[metric] for step in steps if metric in step]
    return seen[0], seen[-1]


def run(command: list[str], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "learn.log").open("a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)


if __name__ == "__main__":
    sys.exit(main())
