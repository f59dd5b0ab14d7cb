"""One job on 2 to 64 pods: its rows over our data buffers, and the classic way through one controller. As root.

    python benchmarks/scaling.py [--pods 2 4 8 16 32 64] [--steps 3] [--rows 4] [--tokens 32768] [--write]
    python benchmarks/scaling.py --context [--pods 8]       rows of 8k to 64k tokens

Real: the data buffers, a process each, every value of every row, the routes, the reports and the verdicts. Emulated:
computing is waiting, of a length that the tokens and `--speed` give; a host is a namespace behind a token bucket in
both directions; all pods share two cores, so links and computing are slow enough, in equal measure, that these are not
the limit (`cores`; `CPU` is what all that moves rows took for a pod and a step). Weak scaling: every pod has `--rows`
rows, whose bytes over its link take the seconds that are printed first. The controller
is as good as one can be: it has nothing but sockets, receives from all pods at once into memory that it keeps, shares
rows out with the same function as our data buffers, and sends views of that memory to all pods at once.

A step lasts from the end of the last pod's to the end of the next, after one to warm up; the classic way, which needs
none, takes fewer. `computing`: its share of a step. `efficiency`: tokens per second and pod, against 2 pods. `link`:
what the busiest link sent and received; in the classic way it is the controller's. Afterwards a cost model is fitted
and projected to 1,024 hosts, beside what DistFlow publishes. --write puts tables and plots into docs/.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import docs_section
from plots import Axis, Line, plot
from scaled_jobs import classic, ours
from scaled_jobs.load import Load, Measured
from scaled_jobs.model import Model

CONTEXTS = (8192, 16384, 32768, 65536)
LONG_SECONDS = 25.0
"""Steps of the classic way that take longer are measured once."""
PROJECTED = (2, 8, 32, 64, 128, 256, 512, 1024)
HEADS = ("pods", "tokens", "way", "step s", "tokens/s", "computing", "efficiency", "cores", "CPU ms", "link out MB")
HEADS += ("link in MB", "memory MB", "steps")
THEIRS = """DistFlow's own figures, hosts of 8 GPUs: 80.5 % (text: 32B, 8 to 64 hosts; in its figure this is 90 %), 90 %
(figure: 7B, 4 to 32 hosts), 78 to 81 % (figure: 72B, 16 to 128 hosts)."""


def measure(load: Load, steps: int) -> list[Measured]:
    """Both ways, one after the other."""
    central = load.compute_seconds + 2 * load.pods * load.link_seconds
    return [ours.measure(load, steps), classic.measure(load, 1 if central > LONG_SECONDS else min(2, steps))]


def table(measured: Sequence[Measured]) -> list[str]:
    """Markdown; efficiency against the first of each way, where pods differ and their rows do not."""
    first = {each.way: each for each in reversed(measured)}
    lines = ["| " + " | ".join(HEADS) + " |", "|--:|--:|---" + "|--:" * (len(HEADS) - 3) + "|"]
    return lines + ["| " + " | ".join(row(each, first[each.way])) + " |" for each in measured]


def row(each: Measured, first: Measured) -> list[str]:
    load = each.load
    efficiency = each.tokens_per_second / load.pods / (first.tokens_per_second / first.load.pods)
    return [
        str(load.pods),
        f"{load.tokens:,}",
        each.way,
        f"{each.step_seconds:.2f}",
        f"{each.tokens_per_second:,.0f}",
        f"{load.compute_seconds / each.step_seconds:.1%}",
        f"{efficiency:.1%}" if load.tokens == first.load.tokens else "",
        f"{each.cores:.2f}",
        f"{each.cores * each.step_seconds / load.pods * 1e3:.0f}",
        f"{each.sent / 1e6:.2f}",
        f"{each.received / 1e6:.2f}",
        f"{each.memory / 1e6:.0f}",
        str(each.steps),
    ]


def by_way(measured: Sequence[Measured], way: str) -> list[Measured]:
    return [each for each in measured if each.way == way]


def projection(measured: Sequence[Measured]) -> tuple[list[str], dict[str, Model]]:
    """The models, and what they say of more hosts."""
    models = {way: Model.fit(by_way(measured, way), is_central=way == classic.WAY) for way in (ours.WAY, classic.WAY)}
    load = measured[0].load
    lines = [f"{way}: {model.shown()}" for way, model in models.items()]
    lines += ["", "| hosts | " + " | ".join(f"{way}, step s | efficiency" for way in models) + " |", "|--:" * 5 + "|"]
    for pods in PROJECTED:
        cells = []
        for model in models.values():
            seconds, first = (model.seconds(replace(load, pods=number), own_cores=True) for number in (pods, 2))
            cells += [f"{seconds:.2f}", f"{first / seconds:.1%}"]
        lines.append(f"| {pods:,} | " + " | ".join(cells) + " |")
    return [*lines, "", THEIRS], models


def plots(measured: Sequence[Measured], models: dict[str, Model]) -> dict[str, str]:
    """File names and pictures."""
    load = measured[0].load
    lines, efficiencies = [], []
    for colour, (way, model) in enumerate(models.items()):
        points = by_way(measured, way)
        base = points[0].tokens_per_second / points[0].load.pods
        lines.append(Line(way, [(p.load.pods, p.tokens_per_second) for p in points], colour))
        shares = [(p.load.pods, 100 * p.tokens_per_second / p.load.pods / base) for p in points]
        efficiencies.append(Line(way, shares, colour))
        loads = [replace(load, pods=2**power) for power in range(1, 11)]
        seconds = [model.seconds(each, own_cores=True) for each in loads]
        shares = [(each.pods, 100 * seconds[0] / its) for each, its in zip(loads, seconds, strict=True)]
        efficiencies.append(Line(f"{way}, model", shares, colour, True))
    ideal = by_way(measured, ours.WAY)[0]
    perfect = [
        (p.load.pods, ideal.tokens_per_second / ideal.load.pods * p.load.pods) for p in by_way(measured, ours.WAY)
    ]
    lines.append(Line("linear", perfect, 6, True))
    link = f"{load.rows} rows of {load.tokens:,} tokens a pod, {load.link_seconds:.2f} s on its link; emulated hosts"
    hosts = Axis("pods", shown="{:,.0f}".format)
    return {
        "scaling-throughput.svg": plot("Throughput", link, hosts, Axis("tokens/s", shown="{:,.0f}".format), lines),
        "scaling-efficiency.svg": plot("Efficiency against 2 pods", link, hosts, Axis("%", is_log=False), efficiencies),
    }


def context_plot(measured: Sequence[Measured]) -> dict[str, str]:
    lines = [
        Line(way, [(p.load.tokens, p.tokens_per_second) for p in by_way(measured, way)], colour)
        for colour, way in enumerate((ours.WAY, classic.WAY))
    ]
    load = measured[0].load
    subtitle = f"{load.pods} pods, {load.rows} rows each, links of {load.megabits:g} Mbit/s; emulated hosts"
    axes = Axis("tokens of a row, mean", shown="{:,.0f}".format), Axis("tokens/s", is_log=False, shown="{:,.0f}".format)
    return {"scaling-context.svg": plot("Throughput by length", subtitle, *axes, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, nargs="+", help="2 4 8 16 32 64; with --context 8")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4, help="of every pod")
    parser.add_argument("--tokens", type=int, default=32768, help="mean of a row")
    parser.add_argument("--megabits", type=float, help="of every link, in both directions: 16; with --context 32")
    parser.add_argument("--speed", type=float, help="tokens that a pod computes in a second: 384 for each Mbit/s")
    parser.add_argument("--context", action="store_true")
    parser.add_argument("--write", action="store_true", help="put tables and pictures into docs/")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that namespaces are taken down
    if os.geteuid() or sys.platform != "linux":
        sys.exit("namespaces and shaped links need Linux and root")
    begin, measured = time.monotonic(), list[Measured]()
    planned = loads(options)
    head = described(planned[0])
    print(head, flush=True)
    for load in planned:
        measured += measure(load, options.steps)
        print("\n".join(table(measured[-2:])[2:] if len(measured) > 2 else table(measured)), flush=True)
    text = [head, "", *table(measured), ""]
    if options.context:
        pictures = context_plot(measured)
    else:
        lines, models = projection(measured)
        text += lines
        pictures = plots(measured, models)
    print("\n".join(["", *text, "", f"{time.monotonic() - begin:.0f} s in all"]))
    if options.write:
        write("context" if options.context else "scaling", text, pictures)


def described(load: Load) -> str:
    """What every pod has to do."""
    return (
        f"A pod: {load.rows} rows, {load.pod_bytes / 1e6:.2f} MB a step, {load.link_seconds:.2f} s on its link of "
        f"{load.megabits:g} Mbit/s; {load.compute_seconds:.2f} s of computing. Load {os.getloadavg()[0]:.1f} at the "
        "start."
    )


def write(section: str, text: Sequence[str], pictures: dict[str, str]) -> None:
    """Tables and pictures into the docs."""
    for name, picture in pictures.items():
        (docs_section.DOCS / name).write_text(picture)
    links = [f"![{name.removesuffix('.svg').replace('-', ' ')}]({name})" for name in pictures]
    docs_section.write(section, [*text, "", *links])


def loads(options: argparse.Namespace) -> list[Load]:
    megabits = options.megabits or (32.0 if options.context else 16.0)
    speed = options.speed or 384 * megabits
    if options.context:
        pods = (options.pods or [8])[0]
        return [Load(pods, options.rows, tokens, megabits, speed) for tokens in CONTEXTS]
    pods = options.pods or [2, 4, 8, 16, 32, 64]
    return [Load(number, options.rows, options.tokens, megabits, speed) for number in pods]


if __name__ == "__main__":
    main()
