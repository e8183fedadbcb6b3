// What people do with the page, and the details of one rank; after draw.js.
// The details of one rank.
function showDetail() {
  const lane = state.picked, pane = byId("detail");
  pane.hidden = !lane;
  pane.textContent = "";
  if (!lane) return;
  const head = element("div", undefined, "head");
  head.append(element("h2", `rank ${lane.rank}`));
  const close = element("button", "close");
  close.id = "close";
  close.addEventListener("click", () => { pick(null); scroll.focus(); });
  head.append(close);
  pane.append(head);
  const rows = [["device", lane.device], ["process", lane.pids.join(", ")]];
  lane.tries.forEach((ended, at) => rows.push([lane.tries.length > 1 ? `try ${at + 1}` : "end", ended.text + (ended.cause ? "; it failed first" : ""), ended.state]));
  const spent = {};
  for (const [start, end, stage] of lane.spans) spent[stage] = (spent[stage] || 0) + end - start;
  for (const [stage, took] of Object.entries(spent)) rows.push([stage, seconds(took)]);
  for (const [metric, curve] of Object.entries(lane.curves)) {
    const last = curve[1][curve[1].length - 1], high = Math.max(...curve[1]);
    const of = metric === "step" && lane.total ? ` of ${amount(lane.total, "step")}` : "";
    const most = metric === "cpu" || metric.endsWith("memory") ? `, at most ${amount(high, metric)}` : "";
    const then = state.at === null ? null : valueAt(curve, state.at);
    rows.push([nameOf(metric), `${amount(last, metric)}${of}${most}${then === null ? "" : `, then ${amount(then, metric)}`}`]);
  }
  for (const [name, text] of Object.entries(lane.texts)) rows.push([name, text]);
  const table = element("table");
  for (const [name, text, kind] of rows) {
    const line = element("tr");
    line.append(element("td", name), element("td", text, kind));
    table.append(line);
  }
  pane.append(table);
  showCollectives(pane, lane);
  for (const ended of lane.tries) if (ended.failure) pane.append(element("h3", "what it reported"), element("pre", ended.failure));
  if (lane.stack) pane.append(element("h3", "its stacks when the time was over, or another rank failed"), element("pre", lane.stack));
  showLines(pane, lane);
}
function showCollectives(pane, lane) {
  const told = lane.collectives;
  if (!told) return;
  pane.append(element("h3", "collectives"));
  const table = element("table");
  const waits = Object.entries(told.for).sort((a, b) => b[1] - a[1]);
  const rows = [["in all", `${seconds(told.seconds)} in them, with ${amount(told.bytes, "memory")} of this rank's`]];
  const calls = Object.entries(told.calls).sort((a, b) => b[1][1] - a[1][1]);
  for (const [name, [number, took]] of calls) rows.push([name, `${number} call${number === 1 ? "" : "s"}, ${seconds(took)}`]);
  rows.push(["waited", `${seconds(told.waited)} for others`]);
  for (const [rank, took] of waits.slice(0, 5)) rows.push([`for rank ${rank}`, seconds(took)]);
  for (const [name, text] of rows) {
    const line = element("tr");
    line.append(element("td", name), element("td", text));
    table.append(line);
  }
  pane.append(table);
}
function showLines(pane, lane) {
  pane.append(element("h3", "what it printed last"));
  if (!lane.lines.length) {
    pane.append(element("p", "nothing, or not to where it is kept: with log_dir, tee or progress its lines are here", "quiet"));
    return;
  }
  const list = element("div");
  list.id = "lines";
  let near = null;
  for (const [at, text] of lane.lines) {
    const line = element("div");
    line.append(element("time", at === null ? "" : seconds(at)), element("span", text));
    if (state.at !== null && at !== null && at <= state.at) near = line;
    list.append(line);
  }
  pane.append(list);
  if (near) { near.className = "near"; list.scrollTop = near.offsetTop - list.offsetTop - list.clientHeight / 2; } else list.scrollTop = list.scrollHeight;
}

// What people do.
function pick(lane, at = null) {
  const wasHidden = byId("detail").hidden;
  state.picked = lane;
  state.at = at;
  showDetail();
  reveal();
  if (wasHidden !== byId("detail").hidden) draw(); else { drawLanes(); drawChart(); }
}
function reveal() {
  if (!state.picked) return;
  const y = state.rows.indexOf(state.picked) * state.height;
  const room = scroll.clientHeight - AXIS;
  if (y < scroll.scrollTop) scroll.scrollTop = y;
  if (y + state.height > scroll.scrollTop + room) scroll.scrollTop = y + state.height - room;
}
function zoom(factor, middle = (state.from + state.to) / 2) {
  const span = Math.min(whole, Math.max(whole / 1e5, (state.to - state.from) * factor));
  const part = (middle - state.from) / (state.to - state.from);
  move(middle - part * span, span);
}
function move(from, span = state.to - state.from) {
  state.from = Math.min(Math.max(0, from), whole - span);
  state.to = state.from + span;
  drawLanes();
  drawChart();
}
function fold(change) {
  const at = HEIGHTS.indexOf(state.height) + change;
  state.height = HEIGHTS[Math.min(HEIGHTS.length - 1, Math.max(0, at))];
  drawLanes();  // which makes the room for them
  reveal();
  draw();
}
function wanted(text) {
  const words = text.toLowerCase().split(/[\s,]+/).filter(Boolean);
  if (!words.length) return () => true;
  const tests = words.map((word) => {
    const range = word.match(/^(\d+)(?:-(\d+))?$/);
    if (range) return (lane) => lane.rank >= Number(range[1]) && lane.rank <= Number(range[2] || range[1]);
    return (lane) => lane.tries.some((ended) => ended.state.startsWith(word)) || lane.device.toLowerCase().includes(word)
      || lane.lines.some((line) => line[1].toLowerCase().includes(word));
  });
  return (lane) => tests.some((test) => test(lane));
}
function arrange() {
  const order = byId("order").value;
  const ends = ["failed", "exited", "stopped", "done"];
  const long = (lane) => lastTry(lane).end - (lane.spans[0] ? lane.spans[0][0] : 0);
  const step = (lane) => { const curve = lane.curves.step; return curve ? curve[1][curve[1].length - 1] : -1; };
  const keys = {
    rank: (lane) => lane.rank,
    end: (lane) => (lastTry(lane).cause ? -1 : ends.indexOf(endOf(lane))),
    long: (lane) => -long(lane),
    step,
  };
  const key = keys[order];
  state.rows = run.ranks.filter(wanted(byId("filter").value)).sort((a, b) => key(a) - key(b) || a.rank - b.rank);
  scroll.scrollTop = 0;
  draw();
}
function laneAt(event) {
  const box = lanes.getBoundingClientRect();
  const y = event.clientY - box.top - AXIS;
  return y < 0 ? undefined : state.rows[Math.floor((y + scroll.scrollTop) / state.height)];
}
function clickedAt(event) {
  const at = timeAt(event.clientX - lanes.getBoundingClientRect().left);
  return at >= 0 && at <= whole ? at : null;
}
function hover(event) {
  const lane = laneAt(event), at = clickedAt(event);
  tip.hidden = !lane || at === null;
  if (tip.hidden) return;
  const span = lane.spans.find(([start, end]) => at >= start && at <= end);
  const value = valueAt(lane.curves[state.metric], at);
  const words = [`rank ${lane.rank} at ${seconds(at)}: ${span ? span[2] : endOf(lane)}`];
  if (value !== null) words.push(`${nameOf(state.metric)} ${amount(value, state.metric)}`);
  tip.textContent = words.join("\n");
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}
function nextFailed() {
  const failed = state.rows.filter((lane) => endOf(lane) === "failed");
  if (failed.length) pick(failed[(failed.indexOf(state.picked) + 1) % failed.length]);
}
function key(event) {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const row = state.rows.indexOf(state.picked), span = state.to - state.from;
  const acts = {
    ArrowDown: () => pick(state.rows[Math.min(state.rows.length - 1, row + 1)] || null),
    ArrowUp: () => pick(state.rows[Math.max(0, row - 1)] || null),
    Home: () => pick(state.rows[0] || null),
    End: () => pick(state.rows[state.rows.length - 1] || null),
    ArrowLeft: () => move(state.from - span / 8),
    ArrowRight: () => move(state.from + span / 8),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(Infinity),
    "[": () => fold(-1), "]": () => fold(1), n: nextFailed, Escape: () => pick(null),
    "/": () => byId("filter").focus(),
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}
let drag = null;
scroll.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from: state.from, moved: false }; });
addEventListener("pointermove", (event) => {
  if (!drag || event.buttons !== 1) return;
  const by = event.clientX - drag.x;
  drag.moved = drag.moved || Math.abs(by) > 4;
  if (drag.moved) move(drag.from - (by / (scroll.clientWidth - gutter() - 8)) * (state.to - state.from));
});
scroll.addEventListener("click", (event) => {
  const lane = laneAt(event);
  if (lane && !(drag && drag.moved)) pick(lane, clickedAt(event));
});
scroll.addEventListener("mousemove", hover);
scroll.addEventListener("mouseleave", () => { tip.hidden = true; });
scroll.addEventListener("scroll", drawLanes);
scroll.addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, timeAt(event.clientX - lanes.getBoundingClientRect().left)));
}, { passive: false });
addEventListener("keydown", key);
byId("metric").addEventListener("change", () => { state.metric = byId("metric").value; draw(); });
byId("filter").addEventListener("input", arrange);
byId("order").addEventListener("change", arrange);
byId("in").addEventListener("click", () => zoom(0.5));
byId("out").addEventListener("click", () => zoom(2));
byId("fit").addEventListener("click", () => zoom(Infinity));
byId("fold").addEventListener("click", () => fold(-1));
byId("unfold").addEventListener("click", () => fold(1));
byId("next").addEventListener("click", nextFailed);
addEventListener("resize", () => draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });

function draw() { drawLanes(); drawChart(); }
state.height = count <= 12 ? 44 : count <= 40 ? 22 : count <= 150 ? 10 : 6;
fillHead();
readColours();
arrange();
