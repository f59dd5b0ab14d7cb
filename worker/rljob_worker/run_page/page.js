const COLOURS = ["#0969da", "#cf222e", "#1a7f37", "#8250df", "#bf8700", "#1b7c83", "#d4488e", "#57606a"];
const WHOLE = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];
const FIGURES = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const CHARACTER_PIXELS = 7.5; // of a figure beside an axis
const LEAST_AXIS_PIXELS = 44;
const PANEL_PIXELS = 420; // three stand beside each other on a page of 1,400
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

// 4e-7 in place of 0.0000004, which no axis has room for
function figure(value) {
  const size = Math.abs(value);
  return size && (size < 1e-4 || size >= 1e6) ? String(Number(value.toPrecision(3)).toExponential()) : FIGURES.format(value);
}

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

// exponential moving average whose first values count as much as they are: the mean so far at 0 steps of history
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + value;
    total = weight * total + 1;
    return sum / total;
  });
}

// several runs: a run has one colour on the whole page, and its metrics in one panel differ by their dashes
function lineStyle(index, i, names, name) {
  if (runs.length === 1) return { stroke: COLOURS[i % COLOURS.length] };
  return { stroke: COLOURS[index % COLOURS.length], dash: DASHES[[...names].indexOf(name) % DASHES.length] };
}

function drawPanel(parent, title, unit, series) {
  const box = element("div", undefined, parent);
  box.className = "panel";
  element("h3", unit ? `${title} (${unit})` : title, box);
  const names = new Set(series.map(({ name }) => name));
  const lines = series.map(({ run, index, name }, i) => ({
    label: runs.length > 1 ? (names.size > 1 ? `${run.name} ${name}` : run.name) : name,
    value: (_, value) => value === null ? "–" : figure(value),
    width: 1.5, spanGaps: true, points: { show: run.steps.length < 60, size: 4 }, ...lineStyle(index, i, names, name),
  }));
  const ink = getComputedStyle(document.body);
  const thin = { stroke: ink.getPropertyValue("--line"), width: 1 }, colours = { stroke: ink.color, grid: thin, ticks: thin };
  const room = (_, ticks) => Math.max(LEAST_AXIS_PIXELS, 16 + CHARACTER_PIXELS * Math.max(0, ...(ticks || []).map((tick) => tick.length)));
  const axes = [{ incrs: WHOLE, ...colours }, { size: room, values: (_, ticks) => ticks.map(figure), ...colours }];
  // a curve that stays where it is has a scale around it, and not one up to 100
  const range = (_, least, most) => least === most ? [least - 1, most + 1] : uPlot.rangeNum(least, most, 0.1, true);
  const width = Math.min(PANEL_PIXELS, document.documentElement.clientWidth - 52);
  const options = { width, height: 200, scales: { x: { time: false }, y: { range } }, legend: { live: true }, axes,
    series: [{ label: "step" }, ...lines] };
  const [steps, ...curves] = aligned(series), weight = Number($("#smoothing").value);
  new uPlot(options, [steps, ...curves.map((values) => smoothed(values, weight))], box);
}

// a curve as text; none for one that never changes, which another may equal by accident
function shape({ run, name }) {
  const values = run.metrics[name];
  return new Set(values).size > 1 ? `${run.name} ${values}` : undefined;
}

function drawCurves() {
  const panels = $("#curves .panels");
  panels.textContent = "";
  const drawn = new Set();
  for (const [title, unit, matches] of PANELS) {
    const series = seriesOf(matches), shapes = series.map(shape);
    if (shapes.every((curve) => drawn.has(curve))) continue; // no two panels of the same curves
    drawPanel(panels, title, unit, series);
    shapes.filter(Boolean).forEach((curve) => drawn.add(curve));
  }
  if (!panels.children.length) element("p", "No step is finished yet.", panels);
}

function drawRuns() {
  const list = $("#runs");
  list.textContent = "";
  runs.forEach((run, i) => {
    const item = element("li", undefined, list);
    element("b", "", item).style.background = COLOURS[i % COLOURS.length];
    element("span", `${run.name}: ${run.state}`, item).className = /^(Failed|Lost)/.test(run.state) ? "failed" : "";
    if (run.waits) element("div", run.waits, item);
    if (run.lengths) element("div", run.lengths, item);
    for (const line of run.warned) element("div", line, item).className = "warned";
  });
}

const differs = (name) => new Set(runs.map((run) => run.config[name])).size > 1;
const fieldNames = () => [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();

// of several runs: in which fields their jobs differ, and what each came to
function drawComparison() {
  $("#comparison").hidden = runs.length < 2;
  const fields = fieldNames().filter(differs), metrics = [...new Set(runs.flatMap((run) => Object.keys(run.finals)))];
  const head = $("#comparison thead"), body = $("#comparison tbody");
  head.textContent = body.textContent = "";
  const line = element("tr", undefined, head);
  ["run", ...fields, "state", ...metrics].forEach((name) => element("th", name, line));
  runs.forEach((run, i) => {
    const line = element("tr", undefined, body), cell = element("td", undefined, line);
    element("b", "", cell).style.background = COLOURS[i % COLOURS.length];
    cell.append(run.name);
    fields.forEach((name) => element("td", run.config[name] ?? "–", line));
    element("td", run.state, line);
    metrics.forEach((name) => element("td", name in run.finals ? figure(run.finals[name]) : "–", line));
  });
}

function drawJob() {
  const head = $("#job thead"), body = $("#job tbody");
  head.textContent = body.textContent = "";
  const line = element("tr", undefined, head);
  ["field", ...runs.map((run) => run.name)].forEach((name) => element("th", name, line));
  for (const name of fieldNames()) {
    if ($("#differences").checked && !differs(name)) continue;
    const line = element("tr", undefined, body);
    if (differs(name)) line.className = "differs";
    element("td", name, line);
    runs.forEach((run) => element("td", run.config[name] ?? "–", line));
  }
}

function draw() {
  drawRuns();
  drawComparison();
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
$("#smoothing").value = state.get("smoothing") ?? 0;
$("#smoothing").oninput = drawCurves;
addEventListener("resize", drawCurves);
matchMedia("(prefers-color-scheme: dark)").onchange = drawCurves;
$("#more").onclick = () => { table.shown += PAGE_ROWS; drawSamples(); };
draw();
document.body.dataset.drawn = "yes";
if (live) setInterval(refresh, 5000);
