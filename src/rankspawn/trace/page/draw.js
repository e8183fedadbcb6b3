// Draws the recording that stands in this page. What ranks said is only ever put in as text.
const run = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const STAGES = ["starting", "importing", "running", "reporting", "stopping"];
const HEIGHTS = [4, 6, 10, 16, 22, 30, 44];
const NAMES = { cpu: "CPU", memory: "memory", gpu_memory: "GPU memory", step: "step", talked: "in collectives", waited: "waited for others" };
const count = run.ranks.length;
const whole = Math.max(run.seconds, 0.001);
const state = {
  from: 0, to: whole, rows: run.ranks, height: 0, picked: null, at: null, metric: "", dark: false,
};
const scroll = byId("scroll"), lanes = byId("lanes"), chart = byId("chart"), tip = byId("tip");
const AXIS = 20;
let colours = {};

// Words and numbers.
function seconds(value, span) {
  if (value >= 3600) return `${Math.floor(value / 3600)}h ${String(Math.floor(value / 60) % 60).padStart(2, "0")}m`;
  if (value >= 120) return `${Math.floor(value / 60)}m ${String(Math.floor(value % 60)).padStart(2, "0")}s`;
  const digits = span === undefined || span < 2 ? 2 : span < 20 ? 1 : 0;
  return `${value.toFixed(digits)} s`;
}
function amount(value, metric) {
  if (metric === "cpu") return `${value < 10 ? Number(value.toPrecision(2)) : value.toFixed(0)}%`;
  if (metric === "memory" || metric === "gpu_memory") {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (value >= 999.5 && at < 4) { value /= 1024; at += 1; }
    return `${Number(value.toPrecision(3))} ${units[at]}`;
  }
  if (metric === "waited" || metric === "talked") return seconds(value);
  return String(Number(value.toPrecision(4)));
}
const nameOf = (metric) => NAMES[metric] || metric.replace(/^=/, "");
const lastTry = (lane) => lane.tries[lane.tries.length - 1] || { state: "exited", text: "", end: whole };
const endOf = (lane) => lastTry(lane).state;
function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
function valueAt(curve, at) {
  if (!curve || !curve[0].length || at < curve[0][0]) return null;
  let low = 0, high = curve[0].length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (curve[0][middle] <= at) low = middle; else high = middle - 1;
  }
  return curve[1][low];
}
function between(curve, at) {  // as it is drawn: straight from point to point
  const [times, values] = curve;
  if (!times.length || at < times[0] || at > times[times.length - 1]) return null;
  let next = times.findIndex((time) => time >= at);
  if (next < 1) return values[0];
  if (isRestarted(times[next - 1], times[next])) return null;
  const part = (at - times[next - 1]) / (times[next] - times[next - 1] || 1);
  return values[next - 1] + part * (values[next] - values[next - 1]);
}

// The head of the page.
function fillHead() {
  const counts = {};
  for (const lane of run.ranks) counts[endOf(lane)] = (counts[endOf(lane)] || 0) + 1;
  const ends = Object.entries(counts).map(([name, number]) => `${number} ${name}`).join(", ");
  const tries = run.starts.length > 1 ? `, ${run.starts.length - 1} restart${run.starts.length > 2 ? "s" : ""}` : "";
  byId("what").textContent = run.facts.what || "rankspawn";
  byId("answer").textContent = run.failed ? "failed" : "ended well";
  byId("answer").classList.toggle("failed", run.failed);
  byId("summary").textContent = `${count} rank${count === 1 ? "" : "s"}, ${seconds(run.seconds)}${tries}: ${ends}`;
  byId("facts").textContent = ["began", "host", "python", "command"].filter((key) => run.facts[key])
    .map((key) => `${key === "python" ? "Python " : ""}${run.facts[key]}`).join(" · ");
  if (run.error) {
    byId("error").hidden = false;
    byId("error").open = count < 50;
    byId("error-text").textContent = run.error.trimEnd();
    byId("error-text").scrollTop = byId("error-text").scrollHeight;  // the exception comes last
  }
  byId("next").hidden = !run.ranks.some((lane) => endOf(lane) === "failed");
  const stages = byId("stages");
  for (const stage of [...STAGES, "done", "failed", "stopped"]) {
    if (STAGES.includes(stage) && !run.ranks.some((lane) => lane.spans.some((span) => span[2] === stage))) continue;
    if (!STAGES.includes(stage) && !counts[stage]) continue;
    const item = element("span");
    const mark = element("i");
    mark.style.background = `var(--${stage})`;
    item.append(mark, STAGES.includes(stage) ? stage : `ended: ${stage}`);
    stages.append(item);
  }
  const metrics = new Set();
  for (const lane of run.ranks) Object.keys(lane.curves).forEach((name) => metrics.add(name));
  const order = ["step", "cpu", "memory", "gpu_memory", "talked", "waited"];
  const sorted = [...order.filter((name) => metrics.has(name)), ...[...metrics].filter((name) => !order.includes(name)).sort()];
  for (const metric of sorted) {
    const option = element("option", nameOf(metric));
    option.value = metric;
    byId("metric").append(option);
  }
  state.metric = sorted.find((name) => name.startsWith("=")) || (metrics.has("cpu") ? "cpu" : sorted[0] || "");
  byId("metric").value = state.metric;
}

// What is drawn on.
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of [...STAGES, "done", "failed", "stopped", "exited", "back", "panel", "text", "quiet", "line", "pick", "curve"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  state.dark = matchMedia("(prefers-color-scheme: dark)").matches;
}
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return pen;
}
const gutter = () => (scroll.clientWidth < 500 ? 62 : 108);
const scale = (width) => (at) => gutter() + ((at - state.from) / (state.to - state.from)) * (width - gutter() - 8);
const timeAt = (x) => state.from + ((x - gutter()) / (scroll.clientWidth - gutter() - 8)) * (state.to - state.from);

function drawAxis(pen, width, height, x) {
  const span = state.to - state.from;
  const raw = span / Math.max(2, (width - gutter()) / 95);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= raw);
  pen.fillStyle = colours.quiet;
  pen.strokeStyle = colours.line;
  pen.textAlign = "center";
  for (let at = Math.ceil(state.from / step) * step; at <= state.to + step / 1e6; at += step) {
    const place = Math.round(x(at)) + 0.5;
    if (place > width - 16 || place < gutter() + 8) continue;
    pen.fillText(seconds(at, span), place, AXIS / 2);
    pen.beginPath(); pen.moveTo(place, AXIS); pen.lineTo(place, height); pen.stroke();
  }
}
function drawLanes() {
  const width = scroll.clientWidth;
  const room = Math.max(60, Math.min(innerHeight * 0.62, AXIS + state.rows.length * state.height + 2));
  byId("spacer").style.height = `${AXIS + state.rows.length * state.height}px`;
  const pen = sized(lanes, width, room - 2);
  const x = scale(width);
  drawAxis(pen, width, room, x);
  const first = Math.floor(scroll.scrollTop / state.height);
  const last = Math.min(state.rows.length, Math.ceil((scroll.scrollTop + room) / state.height) + 1);
  pen.save();
  pen.beginPath(); pen.rect(0, AXIS, width, room); pen.clip();
  const every = Math.ceil(14 / state.height);
  for (let row = first; row < last; row += 1) {
    const y = AXIS + row * state.height - scroll.scrollTop;
    drawLane(pen, state.rows[row], row, y, width, x, row % every === 0);
  }
  for (const start of run.starts.slice(1)) {
    const place = x(start);
    if (place < gutter()) continue;
    pen.strokeStyle = colours.text;
    pen.setLineDash([4, 3]);
    pen.beginPath(); pen.moveTo(place, AXIS); pen.lineTo(place, room); pen.stroke();
    pen.setLineDash([]);
  }
  if (state.picked && state.at !== null) {
    pen.strokeStyle = colours.text;
    pen.beginPath(); pen.moveTo(x(state.at), AXIS); pen.lineTo(x(state.at), room); pen.stroke();
  }
  pen.restore();
}
function drawLane(pen, lane, row, y, width, x, labelled) {
  const thin = state.height < 10 ? 0.5 : state.height < 18 ? 1.5 : 4;
  const tall = state.height - 2 * thin;
  if (lane === state.picked) {
    pen.fillStyle = colours.pick;
    pen.fillRect(0, y, width, state.height);
  }
  const ended = endOf(lane);
  if (labelled) {
    pen.textAlign = "left";
    pen.fillStyle = ended === "failed" ? colours.failed : colours.text;
    pen.fillText(`rank ${lane.rank}`, 8, y + Math.max(state.height, 10) / 2);
    if (gutter() > 100 && state.height >= 16) {
      pen.fillStyle = colours.quiet;
      pen.textAlign = "right";
      pen.fillText(lane.device.slice(0, 9), gutter() - 8, y + state.height / 2);
    }
  }
  pen.save();
  pen.beginPath(); pen.rect(gutter(), y, width, state.height); pen.clip();
  for (const [start, end, stage] of lane.spans) {
    const left = x(start), right = Math.max(left + 1, x(end));
    if (right < gutter() || left > width) continue;
    pen.fillStyle = colours[stage] || colours.starting;
    pen.fillRect(left, y + thin, right - left, tall);
    if (state.height >= 22 && right - left > pen.measureText(stage).width + 12 && stage !== "running") {
      pen.fillStyle = "#fff";
      pen.textAlign = "left";
      pen.fillText(stage, Math.max(left, gutter()) + 5, y + state.height / 2);
    }
  }
  for (const ended of lane.tries) {
    pen.fillStyle = colours[ended.state] || colours.exited;
    const place = x(ended.end);
    pen.fillRect(place - 2, y + thin / 2, ended.cause ? 6 : 4, state.height - thin);
    if (ended.cause && state.height >= 16) {
      // On its own bar if that is long enough: behind it the bar of the next try may follow.
      const began = Math.max(...run.starts.filter((start) => start < ended.end), 0);
      const inside = place - Math.max(x(began), gutter()) > 60;
      pen.font = "bold 13px system-ui, sans-serif";
      pen.textAlign = inside ? "right" : "left";
      pen.fillStyle = inside ? "#fff" : colours.failed;
      pen.fillText("✕ first", place + (inside ? -6 : 8), y + state.height / 2);
      pen.font = "11px system-ui, sans-serif";
    }
  }
  const curve = lane.curves[state.metric];
  if (curve && state.height >= 22) drawCurve(pen, curve, x, y + thin + 2, tall - 4, extent([lane]), state.dark ? "#ffffffcc" : "#ffffffee", 1.4);
  pen.restore();
}
function extent(rows) {
  let low = 0, high = -Infinity;
  for (const lane of rows) {
    const curve = lane.curves[state.metric];
    for (const value of curve ? curve[1] : []) { if (value > high) high = value; if (value < low) low = value; }
  }
  return [low, high > low ? high : low + 1];
}
const isRestarted = (from, to) => run.starts.some((start) => from < start && start <= to);
function drawCurve(pen, curve, x, top, tall, [low, high], colour, thick) {
  pen.strokeStyle = colour;
  pen.lineWidth = thick;
  pen.beginPath();
  for (let at = 0; at < curve[0].length; at += 1) {
    const px = x(curve[0][at]), py = top + tall - ((curve[1][at] - low) / (high - low)) * tall;
    if (at && !isRestarted(curve[0][at - 1], curve[0][at])) pen.lineTo(px, py); else pen.moveTo(px, py);
  }
  pen.stroke();
  pen.lineWidth = 1;
}

// The curve of all ranks: a line for each of few, the range and the middle of many.
function drawChart() {
  const width = scroll.clientWidth, tall = 130;
  const pen = sized(chart, width, tall);
  const x = scale(width);
  const shown = state.rows.filter((lane) => lane.curves[state.metric]);
  const legend = byId("legend");
  legend.textContent = "";
  if (!shown.length) {
    pen.fillStyle = colours.quiet;
    pen.textAlign = "center";
    pen.fillText(state.metric ? "no such curve for these ranks" : "nothing was measured: the run was too short", width / 2, tall / 2);
    return;
  }
  const range = extent(shown);
  const top = 10, deep = tall - 20;
  pen.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(top + deep - part * deep) + 0.5;
    pen.strokeStyle = colours.line;
    pen.beginPath(); pen.moveTo(gutter(), y); pen.lineTo(width - 8, y); pen.stroke();
    pen.fillStyle = colours.quiet;
    pen.fillText(amount(range[0] + part * (range[1] - range[0]), state.metric), gutter() - 6, y);
  }
  pen.save();
  pen.beginPath(); pen.rect(gutter(), 0, width - gutter() - 8, tall); pen.clip();
  if (shown.length <= 16) {
    shown.forEach((lane, at) => {
      const hue = (at * 360) / shown.length + 210;
      drawCurve(pen, lane.curves[state.metric], x, top, deep, range, `hsl(${hue} 65% ${state.dark ? 65 : 42}%)`, lane === state.picked ? 3 : 1.5);
      const item = element("span", ` rank ${lane.rank}`);
      item.style.color = `hsl(${hue} 65% ${state.dark ? 65 : 38}%)`;
      legend.append(item);
    });
  } else {
    drawRange(pen, shown, x, top, deep, range, width);
    legend.textContent = "band: all ranks, line: the median" + (state.picked ? `, strong: rank ${state.picked.rank}` : "");
    const own = state.picked && state.picked.curves[state.metric];
    if (own) drawCurve(pen, own, x, top, deep, range, colours.curve, 2);
  }
  pen.restore();
}
function drawRange(pen, shown, x, top, deep, range, width) {
  const y = (value) => top + deep - ((value - range[0]) / (range[1] - range[0])) * deep;
  const columns = [];
  for (let px = gutter(); px <= width - 8; px += 4) {
    const values = shown.map((lane) => between(lane.curves[state.metric], timeAt(px))).filter((value) => value !== null);
    if (values.length) { values.sort((a, b) => a - b); columns.push([px, values[0], values[values.length >> 1], values[values.length - 1]]); }
  }
  pen.fillStyle = `${colours.running}55`;
  pen.beginPath();
  columns.forEach(([px, , , high], at) => (at ? pen.lineTo(px, y(high)) : pen.moveTo(px, y(high))));
  [...columns].reverse().forEach(([px, low]) => pen.lineTo(px, y(low)));
  pen.fill();
  pen.strokeStyle = colours.running;
  pen.lineWidth = 1.5;
  pen.beginPath();
  columns.forEach(([px, , middle], at) => (at ? pen.lineTo(px, y(middle)) : pen.moveTo(px, y(middle))));
  pen.stroke();
  pen.lineWidth = 1;
}
