"use strict";
const COLOURS = ["#0969da", "#cf222e", "#1a7f37", "#8250df", "#bf8700", "#1b7c83", "#d4488e", "#57606a"];
const PAGE_ROWS = 50;
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const FIGURES = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const $ = (selector) => document.querySelector(selector);
let runs = JSON.parse($("#data").textContent);

const isPartial = (run) => "partial/age_mean" in run.metrics;
const isDisaggregated = (run) => Object.keys(run.metrics).some((name) => /^time\/[a-z]+_idle_seconds$/.test(name));

// title, unit, which metrics
const PANELS = [
  ["Reward", "", (name) => name === "reward/mean"],
  ["Parts of the reward", "", (name, run) => /^reward\/(?!mean|std|max|baseline|timeouts|zero_variance)/.test(name)],
  ["Reward by source", "", (name) => name.startsWith("training/reward/")],
  ["Accuracy by source", "", (name) => name.startsWith("training/accuracy/")],
  ["Accuracy in validation", "", (name) => name.startsWith("validation/accuracy")],
  ["Success by task", "", (name) => /^simulator\/success(\/|$)/.test(name)],
  ["Success at the end by task", "", (name) => /^simulator\/success_at_end(\/|$)/.test(name)],
  ["Success in validation", "", (name) => /^validation\/success(\/|$)/.test(name)],
  ["Time of an episode in simulator and engine", "s", (name, run) => "simulator/success" in run.metrics
    && /^conversation\/world\/(engine_)?seconds$/.test(name)],
  ["Several responses in validation", "", (name) => /^validation\/(pass|maj)@[0-9]+$/.test(name)],
  ["KL divergence", "nats", (name) => name === "kl/reference" || name === "kl/old"],
  ["Mismatch of trainer and rollout", "nats", (name) => name === "mismatch/k3"],
  ["Entropy", "nats", (name) => name === "policy/entropy"],
  ["Response length", "tokens", (name) => name === "response_length/mean" || name === "response_length/max"],
  ["Cut off responses", "fraction", (name) => name === "response/truncated_fraction"],
  ["Reward by agent", "", (name) => /^conversation\/agent\/[^/]+\/reward$/.test(name)],
  ["Turns by agent", "", (name) => /^conversation\/agent\/[^/]+\/turns$/.test(name)],
  ["Response length by agent", "tokens", (name) => /^conversation\/agent\/[^/]+\/response_length$/.test(name)],
  ["Loss", "", (name) => name === "loss/policy" || name === "loss/value"],
  ["Gradient norm", "", (name) => name.endsWith("update/gradient_norm")],
  ["Clipped tokens", "fraction", (name) => name === "policy/clip_fraction"],
  ["Throughput", "tokens/s", (name) => name === "throughput/tokens_per_second"],
  ["Time of a step", "s", (name) => name === "time/step_seconds"],
  ["Time by stage", "s", (name, run) => run.stages.concat("weight_sync", "validation", "checkpoint")
    .some((stage) => name === `time/${stage}_seconds`)],
  ["Waiting for rows", "s", (name) => /^time\/.*_wait_seconds$/.test(name)],
  ["Idle workers", "share of a step", (name) => /^time\/(trainers|generators)_idle_fraction$/.test(name)],
  ["Staleness", "versions", (name, run) => (isDisaggregated(run) || isPartial(run))
    && (name === "staleness/mean" || name === "staleness/max")],
  ["Groups in flight", "", (name) => name === "rollout/groups_in_flight"],
  ["Unfinished responses", "", (name) => /^partial\/(groups_unfinished|rows_unfinished|rows_cut_off)$/.test(name)],
  ["Age of responses", "steps", (name) => name === "partial/age_mean" || name === "partial/age_max"],
  ["Data plane: rows by edge", "bytes", (name) => name.startsWith("data/bytes_")],
  ["Data plane: transfer", "s", (name) => name.startsWith("data/transfer_seconds/")],
];

function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

// metrics of one of several policies stand beside those of the others: policy/solver/reward/mean
const bare = (name) => name.replace(/^policy\/[^/]+\/(?=[^/]+\/)/, "");

function seriesOf(matches) {
  return runs.flatMap((run, index) => Object.keys(run.metrics).filter((name) => matches(bare(name), run))
    .map((name) => ({ run, index, name })));
}

// one line of steps for all series, in which a run that lacks a step has null
function aligned(series) {
  const steps = [...new Set(series.flatMap(({ run }) => run.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, i) => [step, i]));
  return [steps, ...series.map(({ run, name }) => {
    const values = new Array(steps.length).fill(null);
    run.steps.forEach((step, i) => { values[place.get(step)] = run.metrics[name][i]; });
    return values;
  })];
}

function drawPanel(parent, title, unit, series) {
  const box = element("div", undefined, parent);
  box.className = "panel";
  element("h3", unit ? `${title} (${unit})` : title, box);
  const names = new Set(series.map(({ name }) => name));
  const lines = series.map(({ run, index, name }, i) => ({
    label: runs.length > 1 ? (names.size > 1 ? `${run.name} ${name}` : run.name) : name,
    stroke: COLOURS[(runs.length > 1 && names.size === 1 ? index : i) % COLOURS.length],
    width: 1.5, spanGaps: true, points: { show: run.steps.length < 60, size: 4 },
  }));
  const steps = { incrs: WHOLE };
  const figures = { size: 64, values: (_, ticks) => ticks.map((tick) => FIGURES.format(tick)) };
  // a curve that stays where it is has a scale around it, and not one up to 100
  const range = (_, least, most) => least === most ? [least - 1, most + 1] : uPlot.rangeNum(least, most, 0.1, true);
  const options = { width: 430, height: 200, scales: { x: { time: false }, y: { range } }, legend: { live: true },
    axes: [steps, figures], series: [{ label: "step" }, ...lines] };
  new uPlot(options, aligned(series), box);
}

function drawCurves() {
  const parent = $("#curves");
  parent.textContent = "";
  element("h2", "Curves", parent);
  const panels = element("div", undefined, parent);
  panels.className = "panels";
  for (const [title, unit, matches] of PANELS) {
    const series = seriesOf(matches);
    if (series.length) drawPanel(panels, title, unit, series);
  }
  if (!panels.children.length) element("p", "No step is finished yet.", parent);
}

function drawRuns() {
  const list = $("#runs");
  list.textContent = "";
  runs.forEach((run, i) => {
    const item = element("li", undefined, list);
    element("b", "", item).style.background = COLOURS[i % COLOURS.length];
    item.append(`${run.name}: ${run.state}`);
    if (run.waits) element("div", run.waits, item);
    if (run.lengths) element("div", run.lengths, item);
    for (const line of run.warned) element("div", line, item).className = "warned";
  });
}

const table = { sort: "step", ascending: false, shown: PAGE_ROWS };

function sampleRows() {
  const all = runs.flatMap((run) => run.samples.map((sample) => ({ run: run.name, ...sample })));
  const words = $("#search").value.toLowerCase();
  const said = (row) => (row.messages || []).map(messageText);
  const matches = (row) => [row.prompt, row.response, ...said(row)].some((text) => String(text ?? "").toLowerCase().includes(words));
  const order = (a, b) => (a[table.sort] ?? "") < (b[table.sort] ?? "") ? -1 : (a[table.sort] ?? "") > (b[table.sort] ?? "") ? 1 : 0;
  const found = all.filter(matches).sort(order);
  return table.ascending ? found : found.reverse();
}

function messageText(message) {
  const calls = (message.tool_calls || []).map((call) => `calls ${call.function.name}(${JSON.stringify(call.function.arguments)})`);
  const thought = message.reasoning_content ? [`(thinks) ${message.reasoning_content}`] : [];
  return [...thought, ...(message.content ? [message.content] : []), ...calls].join("\n");
}

// agents of teams, each with the colour that it has on the whole page
function agentNames() {
  const messages = runs.flatMap((run) => run.samples).flatMap((sample) => sample.messages || []);
  return [...new Set(messages.map((message) => message.agent).filter(Boolean))];
}

// who said what: turns of the policy with the rewards of the world beside them, and what others said, which is masked
function drawConversation(row, cell, agents) {
  const rewards = row.environment_rewards || [];
  let turn = 0;
  for (const message of row.messages) {
    const sampled = message.role === "assistant";
    const line = element("div", undefined, cell);
    line.className = sampled ? "said sampled" : "said masked";
    const given = sampled ? rewards.filter(([of]) => of === turn).map(([, value]) => `, reward ${value}`).join("") : "";
    if (message.agent) {
      line.style.borderColor = line.style.color = COLOURS[agents.indexOf(message.agent) % COLOURS.length];
    }
    element("b", `${message.agent || message.role} (${sampled ? `turn ${++turn}, sampled${given}` : "masked"})`, line);
    element("pre", messageText(message), line);
  }
  for (const [of, value] of rewards) if (of === null) element("div", `reward of the world at the end: ${value}`, cell);
}

function drawSamples() {
  const rows = sampleRows(), agents = agentNames();
  const hidden = ["step", "row", "prompt", "response", "reward", "run", "messages", "environment_rewards"];
  const others = [...new Set(rows.flatMap(Object.keys))].filter((name) => !hidden.includes(name));
  const columns = [...(runs.length > 1 ? ["run"] : []), "step", "row", "reward", "prompt", "response", ...others];
  const head = $("#samples thead"), body = $("#samples tbody");
  head.textContent = body.textContent = "";
  const line = element("tr", undefined, head);
  for (const name of columns) {
    element("th", name + (name === table.sort ? (table.ascending ? " ▲" : " ▼") : ""), line).onclick = () => {
      table.ascending = name === table.sort ? !table.ascending : true;
      table.sort = name;
      drawSamples();
    };
  }
  for (const row of rows.slice(0, table.shown)) {
    const line = element("tr", undefined, body);
    for (const name of columns) {
      const value = row[name];
      const text = value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
      const cell = element("td", undefined, line);
      if (name === "pictures") drawPictures(value, cell);
      else if (name === "video") drawVideo(value, cell);
      else if (name === "timeline") drawTimeline(value, cell);
      else if (name === "response" && row.messages) drawConversation(row, cell, agents);
      else if (typeof value === "string") element("pre", text, cell); else cell.textContent = text;
    }
  }
  $("#found").textContent = `${rows.length} samples`;
  $("#more").hidden = rows.length <= table.shown;
}

function drawPictures(urls, cell) {
  for (const url of Array.isArray(urls) ? urls : []) {
    if (String(url).startsWith("data:image/jpeg;base64,")) element("img", undefined, cell).src = url;
  }
}

function drawVideo(url, cell) {
  if (String(url).startsWith("data:image/png;base64,")) element("img", undefined, cell).src = url;
}

// an episode from left to right: how long the environment and the engine took in turn, beginning with its reset
function drawTimeline(seconds, cell) {
  if (!Array.isArray(seconds)) return;
  const sums = [0, 0];
  const bar = element("div", undefined, cell);
  bar.className = "timeline";
  seconds.forEach((value, i) => {
    sums[i % 2] += value;
    const part = element("span", undefined, bar);
    part.className = i % 2 ? "engine" : "environment";
    part.style.flexGrow = value;
    part.title = `${part.className} ${FIGURES.format(value)} s`;
  });
  element("div", `environment ${FIGURES.format(sums[0])} s, engine ${FIGURES.format(sums[1])} s`, cell);
}

function drawJob() {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
  const head = $("#job thead"), body = $("#job tbody");
  head.textContent = body.textContent = "";
  const line = element("tr", undefined, head);
  ["field", ...runs.map((run) => run.name)].forEach((name) => element("th", name, line));
  for (const name of names) {
    const differs = new Set(runs.map((run) => run.config[name])).size > 1;
    if ($("#differences").checked && !differs) continue;
    const line = element("tr", undefined, body);
    if (differs) line.className = "differs";
    element("td", name, line);
    runs.forEach((run) => element("td", run.config[name] ?? "–", line));
  }
}

function draw() {
  drawRuns();
  drawCurves();
  drawSamples();
  drawJob();
}

async function refresh() {
  try {
    const answer = await fetch("data.json");
    runs = await answer.json();
    const place = scrollY;
    draw();
    scrollTo(0, place); // while curves are drawn anew the page is short
  } catch { /* the server is gone: the page keeps what it has */ }
}

// report.html#search=eggs&differences: a page as somebody meant to show it
const state = new URLSearchParams(location.hash.slice(1));
$("#search").value = state.get("search") ?? "";
$("#differences").checked = state.has("differences");
$("#search").oninput = () => { table.shown = PAGE_ROWS; drawSamples(); };
$("#differences").onchange = drawJob;
$("#more").onclick = () => { table.shown += PAGE_ROWS; drawSamples(); };
draw();
document.body.dataset.drawn = "yes";
if (live) setInterval(refresh, 5000);
