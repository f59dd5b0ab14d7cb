"""The page in a real browser: what a person sees of runs."""

import html
import json
import re
import urllib.error
import urllib.request

import pytest

from rljob_api.tests.http_server import serving
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.run_page.page import page, write_page
from rljob_worker.run_page.serve import page_server
from rljob_worker.run_page.tests.browser import dom_of, screenshot
from rljob_worker.rundir.directory import RunNote

EVIL = "</script><!--<script>document.title='broken'</script> {{live}}"


def run_folder(tmp_path, name, steps=3, **config):
    folder = tmp_path / name
    folder.mkdir()
    job = {"metadata": {"name": name}, "spec": {"seed": 7, "algorithm": {"name": "GRPO", **config}}}
    (folder / "job.yaml").write_text(json.dumps(job))
    note = RunNote(name, "Succeeded", 1, 1, restarts=0, started_seconds=1, updated_seconds=2, total_steps=steps)
    (folder / "run.json").write_text(note.to_json())
    (folder / "plan.json").write_text(json.dumps({"stages": [{"name": "rollout"}, {"name": "update"}]}))
    write_steps(folder, range(1, steps + 1))
    return folder


def write_steps(folder, steps):
    with (folder / "metrics.jsonl").open("a") as metrics, (folder / "samples.jsonl").open("a") as samples:
        for step in steps:
            point = {
                "step": step, "reward/mean": step / 10, "kl/reference": 0.01, "policy/entropy": 0.3,
                "training/reward/sums": 0.5, "training/accuracy/sums": 0.5, "validation/accuracy/sums": 0.5,
                "validation/pass@2": 0.7, "validation/pass@2/sums": 0.7, "response_length/mean": 9.0,
                "throughput/tokens_per_second": 100.0,
                "time/rollout_seconds": 0.2, "time/update_seconds": 0.4, "data/bytes_rollout->update": 5.0,
                "staleness/mean": 0.0,
            }  # fmt: skip
            metrics.write(json.dumps(point) + "\n")
            sample = {"step": step, "row": step, "prompt": f"{step} eggs?", "response": EVIL, "reward": 0.5}
            samples.write(json.dumps(sample | {"tokens": {"text": ["a"]}}) + "\n")


def titles(dom):
    return re.findall(r"<h3>(.*?)</h3>", dom)


def cells(dom, section):
    body = dom[dom.index(f'<section id="{section}">') :].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", body, re.DOTALL)
    return [[html.unescape(re.sub(r"<.*?>", "", cell)) for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)]
            for row in rows]  # fmt: skip


def test_two_runs_beside_each_other(tmp_path):
    path = tmp_path / "report.html"
    write_page([run_folder(tmp_path, "a"), run_folder(tmp_path, "b", steps=5, groupSize=4)], path)
    dom = dom_of(f"{path.as_uri()}#search=3%20eggs&differences", tmp_path / "profile")
    assert 'data-drawn="yes"' in dom and "<title>a, b</title>" in dom
    assert titles(dom) == [
        "Reward", "Reward by source", "Accuracy by source", "Accuracy in validation", "Several responses in validation",
        "KL divergence (nats)", "Entropy (nats)", "Response length (tokens)", "Throughput (tokens/s)",
        "Time by stage (s)", "Data plane: rows by edge (bytes)",
    ]  # fmt: skip
    assert dom.count("<canvas") == 11, "each panel has its curves"
    assert "b: Succeeded after 5 of 5 steps" in dom
    # the last ten steps in the mean: (0.1 + 0.2 + 0.3) / 3, (0.1 + … + 0.5) / 5
    assert [row[:4] for row in cells(dom, "comparison")] == [
        ["a", "–", "Succeeded after 3 of 3 steps", "0.2"],
        ["b", "4", "Succeeded after 5 of 5 steps", "0.3"],
    ]
    assert cells(dom, "job") == [["algorithm.groupSize", "–", "4"]]
    result = cells(dom, "samples")
    assert sorted(row[:3] for row in result) == [["a", "3", "3"], ["b", "3", "3"]]
    assert result[0][5] == EVIL


def test_a_run_has_one_colour_on_the_whole_page_and_a_failed_one_looks_failed(tmp_path):
    folders = [run_folder(tmp_path, "a"), run_folder(tmp_path, "b")]
    note = RunNote(
        "b", "Failed", 1, 1, restarts=0, started_seconds=1, updated_seconds=2, total_steps=3, cause="no disk"
    )
    (folders[1] / "run.json").write_text(note.to_json())
    path = tmp_path / "report.html"
    write_page(folders, path)
    dom = dom_of(path.as_uri(), tmp_path / "profile")
    assert re.findall(r'<span class="(\w*)">(.*?)</span>', dom[: dom.index('id="comparison"')]) == [
        ("", "a: Succeeded after 3 of 3 steps"),
        ("failed", "b: Failed after 3 of 3 steps: no disk"),
    ]
    markers = re.findall(
        r'class="u-marker" style="border: 2px (\w+) (.*?);.*?"></div><div class="u-label">(.*?)</div>', dom
    )
    colours = {run: {colour for _, colour, label in markers if label.split()[0] == run} for run in "ab"}
    assert len(colours["a"]) == len(colours["b"]) == 1 and colours["a"] != colours["b"]


def test_a_part_of_the_reward_that_is_all_of_it_has_no_panel(tmp_path):
    folder = run_folder(tmp_path, "a", steps=0)
    rows = [{"step": step, "reward/mean": step / 10, "reward/sums": step / 10} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "report.html"
    write_page([folder], path)
    assert titles(dom_of(path.as_uri(), tmp_path / "profile")) == ["Reward"]


@pytest.mark.parametrize(("width", "dark"), [pytest.param(1400, False, marks=pytest.mark.slow), (400, True)])
def test_a_page_fits_its_window_and_has_the_colours_of_the_system(tmp_path, width, dark):
    path = tmp_path / "report.html"
    write_page([run_folder(tmp_path, "a"), run_folder(tmp_path, "b", groupSize=4)], path)
    image = screenshot(path.as_uri(), tmp_path / "profile", width, dark=dark)
    paper = (13, 17, 23) if dark else (255, 255, 255)
    assert image.size == (width, 1500)
    margin = image.crop((width - 15, 0, width, 1500))
    assert margin.getcolors() == [(15 * 1500, paper)], "nothing reaches into the margin on the right"
    assert len(image.getcolors(1_000_000)) > 50, "curves are drawn"


def test_a_disaggregated_run_shows_who_waited(tmp_path):
    folder = run_folder(tmp_path, "a", steps=0)
    step = {
        "step": 1, "time/step_seconds": 2.0, "staleness/mean": 1.0, "staleness/max": 1.0, "rollout/groups_in_flight": 8,
        "time/trainers_idle_seconds": 0.5, "time/trainers_idle_fraction": 0.25, "time/trainers_idle_seconds/rows": 0.5,
        "time/generators_idle_seconds": 0.0, "time/generators_idle_fraction": 0.0,
    }  # fmt: skip
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    path = tmp_path / "report.html"
    write_page([folder], path)
    dom = dom_of(path.as_uri(), tmp_path / "profile")
    assert titles(dom) == ["Time of a step (s)", "Idle workers (share of a step)", "Staleness (versions)",
                           "Groups in flight"]  # fmt: skip
    assert "<div>trainers waited 0.50 s of 2.00 s per step for rows; generators waited 0.00 s" in dom


def test_a_run_that_carries_responses_on_shows_them(tmp_path):
    folder = run_folder(tmp_path, "a", steps=0)
    step = {
        "step": 1, "staleness/mean": 0.5, "staleness/max": 2.0, "partial/groups_unfinished": 6.0,
        "partial/rows_unfinished": 9.0, "partial/rows_cut_off": 0.0, "partial/age_mean": 0.5, "partial/age_max": 3.0,
        "response_length/mean": 9.0, "response_length/max": 30.0,
    }  # fmt: skip
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    sample = {"step": 1, "row": 1, "prompt": "2 eggs?", "response": "4", "reward": 1.0, "versions": [[0, 0], [8, 1]]}
    (folder / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    path = tmp_path / "report.html"
    write_page([folder], path)
    dom = dom_of(path.as_uri(), tmp_path / "profile")
    assert titles(dom) == ["Response length (tokens)", "Staleness (versions)", "Unfinished responses",
                           "Age of responses (steps)"]  # fmt: skip
    assert "<div>6.0 groups with 9.0 unfinished responses go on after a step" in dom
    assert cells(dom, "samples")[0][5] == "weights of the start, from token 9 on of step 1"


def test_a_run_of_episodes_shows_videos_and_where_their_time_went(tmp_path):
    folder = run_folder(tmp_path, "a", steps=0)
    step = {"step": 1, "simulator/success": 0.5, "simulator/success/push": 0.5, "conversation/world/seconds": 2.0}
    (folder / "metrics.jsonl").write_text(json.dumps(step | {"conversation/world/engine_seconds": 1.0}) + "\n")
    video = "data:image/png;base64,iVBORw0KGgo="
    sample = {"step": 1, "row": 1, "prompt": "push", "response": "", "video": video, "timeline": [0.5, 0.25, 1.5]}
    evil = sample | {"row": 2, "video": "https://evil.example/x.png", "timeline": "<b>"}
    (folder / "samples.jsonl").write_text(json.dumps(sample) + "\n" + json.dumps(evil) + "\n")
    path = tmp_path / "report.html"
    write_page([folder], path)
    dom = dom_of(path.as_uri(), tmp_path / "profile")
    assert titles(dom) == ["Success by task", "Time of an episode in simulator and engine (s)"]
    assert dom.count(f'<img src="{video}">') == 1 and 'src="https' not in dom
    assert dom.count('class="environment"') == 2 and dom.count('class="engine"') == 1
    assert "environment 2 s, engine 0.25 s" in dom


def test_agents_of_a_team_have_a_colour_each_and_policies_a_curve_each(tmp_path):
    folder = run_folder(tmp_path, "a", steps=0)
    figures = ("turns", "response_length", "reward")
    step = {"step": 1} | {f"conversation/agent/{agent}/{name}": 1.0 for agent in ("s", "c") for name in figures}
    step |= {f"policy/{policy}/{name}": 2.0 for policy in ("one", "two") for name in ("policy/entropy", "loss/policy")}
    (folder / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    said = [
        {"role": "assistant", "content": name, "agent": agent} for name, agent in (("x", "s"), ("y", "c"), ("z", "s"))
    ]
    sample = {"step": 1, "row": 1, "messages": [{"role": "user", "content": "2?"}, *said], "agent": "c"}
    (folder / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    path = tmp_path / "report.html"
    write_page([folder], path)
    dom = dom_of(path.as_uri(), tmp_path / "profile")
    assert titles(dom) == ["Entropy (nats)", "Reward by agent", "Turns by agent", "Response length by agent (tokens)",
                           "Loss"]  # fmt: skip
    for name in ("policy/one/policy/entropy", "policy/two/policy/entropy", "conversation/agent/c/reward"):
        assert f">{name}<" in dom, name
    lines = re.findall(r'<div class="said (\w+)"(?: style="([^"]*)")?><b>(.*?)</b>', dom)
    assert [(kind, words) for kind, _, words in lines] == [
        ("masked", "user (masked)"),
        ("sampled", "s (turn 1, sampled)"),
        ("sampled", "c (turn 2, sampled)"),
        ("sampled", "s (turn 3, sampled)"),
    ]
    none, one, other, again = (style for _, style, _ in lines)
    assert none == "" and "color" in one and one == again != other


def test_the_page_asks_nobody_for_anything(tmp_path):
    text = page([run_folder(tmp_path, "a")])
    own = re.sub(r"/\*!.*?\*/", "", text, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(""", own)
    assert "const live = false" in own
    assert len(text) < 1_000_000


def test_a_run_without_steps_has_a_page(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (tmp_path / "page.html").write_text(page([folder]))
    dom = dom_of((tmp_path / "page.html").as_uri(), tmp_path / "profile")
    assert "No step is finished yet." in dom and "a: 0 steps" in dom


def test_a_page_that_cannot_be_written_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot write"):
        write_page([tmp_path], tmp_path / "no" / "report.html")


def test_a_served_page_has_what_has_come_since(tmp_path):
    folder = run_folder(tmp_path, "a")
    with serving(page_server([folder])) as url:
        dom = dom_of(f"{url}/", tmp_path / "profile")
        assert "after 3 of 3 steps" in dom and len(cells(dom, "samples")) == 3
        write_steps(folder, [4])
        with urllib.request.urlopen(f"{url}/data.json") as answer:
            (run,) = json.load(answer)
        assert run["steps"] == [1, 2, 3, 4] and run["metrics"]["reward/mean"][-1] == 0.4


def test_pages_from_elsewhere_cannot_read_runs(tmp_path):
    with serving(page_server([run_folder(tmp_path, "a")])) as url:
        for path, host, code in (("/", "evil.example:80", 403), ("/../etc/passwd", "localhost:1", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(url + path, headers={"Host": host}))
            assert refused.value.code == code
            refused.value.close()


def test_a_port_that_is_taken_is_reported(tmp_path):
    with page_server([tmp_path]) as first, pytest.raises(InvalidJob, match="choose another one"):
        page_server([tmp_path], first.server_port)
