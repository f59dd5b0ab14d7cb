// the table of samples: conversations, pictures, videos and time lines in their cells
const PAGE_ROWS = 50;
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
    part.title = `${part.className} ${figure(value)} s`;
  });
  element("div", `environment ${figure(sums[0])} s, engine ${figure(sums[1])} s`, cell);
}
