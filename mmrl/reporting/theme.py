"""The look of the report and its one script; the page allows exactly these two by their hashes."""

STYLE = """
:root { color-scheme: light dark; --page: #f7f7f5; --card: #ffffff; --ink: #1b1d21; --soft: #5f6570; --faint: #e4e5e2;
  --accent: #0f766e; --good: #15803d; --bad: #b42318; --c1: #0f8a80; --c2: #7c5cd6; --c3: #e08a1e; --c4: #3b82c4;
  --c5: #d1507a; --c6: #7a8b2f; --c7: #8b6b4a; --c8: #9aa0a8; --none: #b6bac1; }
@media (prefers-color-scheme: dark) {
  :root { --page: #121417; --card: #1b1e23; --ink: #e9eaec; --soft: #a0a6b0; --faint: #2c3037; --accent: #4fd1c1;
    --good: #5fd38a; --bad: #ff8a7a; --c1: #3cc4b4; --c2: #a993f5; --c3: #f0ab4f; --c4: #6fb1ea; --c5: #ee83a6;
    --c6: #aabb5c; --c7: #c3a17c; --c8: #868d98; --none: #5b616b; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5; font-family: system-ui, -apple-system,
  "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif; font-size: 15px;
  font-variant-numeric: tabular-nums; }
main { max-width: 1160px; margin: 0 auto; padding: 40px 24px 64px; }
h1, h2, h3, p, figure, dl, dd { margin: 0; }
.eyebrow { color: var(--soft); font-size: 13px; letter-spacing: .02em; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.015em; font-weight: 650; overflow-wrap: anywhere;
  margin: 2px 0 10px; }
.lead { font-size: 18px; max-width: 46em; overflow-wrap: anywhere; }
.lead strong:not(.before) { color: var(--accent); font-weight: 650; white-space: nowrap; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 20px; font-size: 14px; }
nav a { color: var(--soft); text-decoration: none; }
nav a:hover { color: var(--accent); text-decoration: underline; }
section { margin-top: 44px; }
h2 { font-size: 20px; letter-spacing: -.01em; font-weight: 650; margin-bottom: 12px; }
.about { color: var(--soft); max-width: 62em; margin-bottom: 14px; }
.about:empty { display: none; }
h2:has(+ .about:not(:empty)) { margin-bottom: 2px; }
.card { background: var(--card); border: 1px solid var(--faint); border-radius: 12px; padding: 16px 18px;
  min-width: 0; }
.tiles { display: grid; grid-template-columns: minmax(0, 2fr) repeat(3, minmax(0, 1fr)); gap: 14px; margin-top: 24px;
  }
.tile dt { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.tile .value { font-size: 26px; line-height: 1.3; font-weight: 600; letter-spacing: -.01em; }
.tile.main .value { font-size: 40px; line-height: 1.15; letter-spacing: -.025em; white-space: nowrap; }
.tile.main .value b { color: var(--accent); font-weight: 650; }
.tile.main .value b.same, .lead strong.same { color: inherit; }
.tile.main .value b.worse, .lead strong.worse { color: var(--bad); }
.tile .value span { color: var(--soft); font-weight: 400; }
.tile .more { color: var(--soft); font-size: 13px; }
.grid { display: grid; gap: 14px; }
.grid.two { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.grid.three { grid-template-columns: repeat(3, minmax(0, 1fr)); }
figure.card { display: flex; flex-direction: column; }
figcaption { display: flex; justify-content: space-between; align-items: baseline; gap: 12px; margin-bottom: 6px; }
h3 { font-size: 15px; font-weight: 600; overflow-wrap: anywhere; }
.now { color: var(--soft); font-size: 14px; white-space: nowrap; }
.hint { color: var(--soft); font-size: 13px; line-height: 1.45; margin-top: 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--soft); margin-bottom: 4px; }
.legend > span { min-width: 0; max-width: 100%; display: inline-flex; align-items: baseline; gap: 0 6px; }
.legend .swatch { margin: 0; flex: none; }
.legend .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; max-width: 16em; }
.chooser { color: var(--soft); font-size: 14px; margin-bottom: 12px; }
select { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--faint); border-radius: 8px;
  padding: 4px 10px; }
.legend b, .constant b { font-weight: 600; color: var(--ink); white-space: nowrap; }
.constant { color: var(--soft); font-size: 14px; overflow-wrap: anywhere; }
.grid + .constant { margin-top: 14px; }
.swatch { width: 10px; height: 10px; display: inline-block; border-radius: 3px; margin-right: 6px; }
.chart { min-height: 200px; }
.shares { display: block; width: 100%; height: 22px; border-radius: 6px; margin-bottom: 14px; }
#tip { position: fixed; pointer-events: none; visibility: hidden; z-index: 9; background: var(--ink);
  color: var(--page); font-size: 13px; line-height: 1.4; padding: 6px 10px; border-radius: 8px; white-space: pre; }
.pairs { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 14px; }
.pairs.wide { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.pairs.full { grid-template-columns: minmax(0, 1fr); }
.pair { display: flex; flex-direction: column; gap: 10px; }
.pair .prompt { font-weight: 500; overflow-wrap: anywhere; white-space: pre-line; max-height: 6em; overflow: auto; }
.pair .sides { display: grid; grid-template-columns: 1fr 1fr; gap: 10px; margin-top: auto; }
.pair .sides > div { min-width: 0; }
.pair img + pre.answer { margin-top: 8px; }
.pair pre.answer + table, .members img + table, .members video + table { margin-top: 6px; }
.pair .sides.three { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.pair video { display: block; width: 100%; height: auto; border-radius: 6px; background: var(--faint);
  outline: 1px solid var(--none); }
.pair img.strip, .pair img + img, .pair img + .side { margin-top: 6px; }
.pair .note { aspect-ratio: auto; margin: 0; padding: 10px; text-align: center; overflow-wrap: anywhere; }
.pair img { display: block; width: 100%; height: auto; border-radius: 6px; background: var(--faint); }
.pair img, .output img { outline: 1px solid var(--none); }
img.crisp, video.crisp { image-rendering: pixelated; }
.pair .missing { aspect-ratio: 1; display: grid; place-items: center; border: 1px dashed var(--none);
  border-radius: 6px; color: var(--soft); font-size: 13px; }
.pair pre.answer { margin: 0; font: inherit; font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 16em; overflow: auto; background: var(--page); border-radius: 6px; padding: 8px 10px; }
.side { font-size: 12px; color: var(--soft); margin-bottom: 4px; }
.seed { font-size: 12px; color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 500; color: var(--soft); }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--faint); overflow-wrap: anywhere; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr:last-child > * { border-bottom: 0; }
.right { text-align: right; white-space: nowrap; }
.pair table { font-size: 13px; table-layout: fixed; }
.pair th, .pair td { padding: 4px 0; }
.pair td { width: 5.4em; }
.up { color: var(--good); }
.down { color: var(--bad); }
.warning { border-left: 3px solid var(--bad); padding: 4px 0 4px 12px; margin-top: 16px; }
.warning + .warning { margin-top: 8px; }
.warning + .grid { margin-top: 16px; }
dl.versions { display: grid; grid-template-columns: repeat(auto-fill, minmax(160px, 1fr)); gap: 12px 18px; }
.versions dt { color: var(--soft); font-size: 13px; }
.versions dd { overflow-wrap: anywhere; }
details { background: var(--card); border: 1px solid var(--faint); border-radius: 12px; }
summary { cursor: pointer; padding: 14px 18px; font-weight: 500; }
details pre { margin: 0; padding: 0 18px 16px; overflow-x: auto; font: 13px/1.5 ui-monospace, "SF Mono", Menlo,
  Consolas, "Liberation Mono", monospace; }
.levels { margin-top: 14px; }
.levels dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: 8px 22px;
  margin-top: 8px; }
.levels dl > div { display: flex; justify-content: space-between; gap: 10px; border-bottom: 1px solid var(--faint);
  padding-bottom: 4px; font-size: 14px; }
.levels dt { color: var(--soft); overflow-wrap: anywhere; min-width: 0; }
.levels dd { font-weight: 600; text-align: right; }
.findings { list-style: none; margin: 0; padding: 0; display: grid; gap: 10px; }
.finding { border-left-width: 4px; }
.finding.fatal { border-left-color: var(--bad); }
.finding.warning { border-left-color: var(--c3); margin-top: 0; padding: 16px 18px; }
.finding.note { border-left-color: var(--c4); }
.finding .head { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 10px; margin-bottom: 4px; }
.finding code { font: 14px ui-monospace, Menlo, Consolas, "Liberation Mono", monospace; overflow-wrap: anywhere; }
.finding .head code { font-weight: 600; }
.finding .when { color: var(--soft); font-size: 13px; margin-left: auto; }
.finding .cause, .finding .remedy { overflow-wrap: anywhere; }
.finding .remedy { color: var(--soft); }
.finding .head .value { font-size: 14px; color: var(--soft); }
.finding p > i { font: inherit; font-weight: 600; color: var(--soft); margin-right: 6px; }
.badge { font-size: 12px; font-weight: 650; padding: 1px 8px; border: 0; border-radius: 999px; margin: 0;
  color: #fff; white-space: nowrap; }
.badge.fatal { background: #b42318; } .badge.note { background: #2563a0; }
.badge.warning { background: #8a5200; border: 0; margin: 0; padding: 1px 8px; }
.badge.place { background: var(--faint); color: var(--ink); font-weight: 500; }
.prompt-cell { overflow-wrap: anywhere; width: 60%; }
.prompt-cell .badge { margin-left: 4px; }
.prompt-cell bdi { display: inline-block; max-width: 100%; max-height: 9em; overflow: auto; vertical-align: top; }
.wide-table { overflow-x: auto; }
#groups > * + * { margin-top: 10px; }
.about.after { margin: 16px 0 0; }
.more-pairs { margin-top: 14px; }
details .inside { padding: 0 18px 14px; }
.spark { display: block; width: 120px; height: 28px; }
.spark polyline { fill: none; stroke: var(--c1); stroke-width: 1.5; } .spark circle { fill: var(--c1); }
.group { margin-top: 14px; }
.members, .film { display: grid; gap: 12px; grid-template-columns: repeat(4, minmax(0, 1fr)); align-items: start; }
.members > div, .film > div { min-width: 0; }
.film { display: flex; overflow-x: auto; padding-bottom: 6px; }
.film > div { flex: 0 0 200px; }
.members:has(.broad) { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.film > div:has(.broad) { flex-basis: min(420px, 86vw); }
.prompt, pre.answer, .cause, .remedy, .prompt-cell { unicode-bidi: isolate; }
@media (max-width: 900px) {
  .members { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .grid.three, .pairs { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .pairs.wide { grid-template-columns: minmax(0, 1fr); }
  .tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .tile.main { grid-column: 1 / -1; }
}
@media (max-width: 640px) {
  main { padding: 24px 14px 40px; }
  h1 { font-size: 24px; }
  .lead { font-size: 16px; }
  section { margin-top: 34px; }
  .grid.two, .grid.three, .pairs, .pairs.wide { grid-template-columns: minmax(0, 1fr); }
  .card { padding: 14px; }
  .pairs.wide .sides, .pairs.full .sides { grid-template-columns: minmax(0, 1fr); }
  .tiles { gap: 10px; }
  .tile .value { font-size: 18px; }
  .tile.main .value { font-size: 34px; }
  .pair .sides:has(.broad), .members:has(.broad), .beside:has(.broad) { grid-template-columns: minmax(0, 1fr); }
  .optional { display: none; }
  .spark { width: 72px; height: 17px; }
  .wide-table th, .wide-table td { padding: 6px; }
  .wide-table th:first-child, .wide-table td:first-child { padding-left: 0; }
  .wide-table th:last-child, .wide-table td:last-child { padding-right: 0; }
}
""" + "".join(
    f".fill-{index} {{ fill: var(--c{index}); }} .stroke-{index} {{ stroke: var(--c{index}); }} "
    f".back-{index} {{ background: var(--c{index}); }}\n"
    for index in range(1, 9)
)

NUM_COLOURS = 8

SCRIPT = """
"use strict";
const tip = document.getElementById("tip");
const text = value => Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 || value === 0
  ? value.toLocaleString("en", {maximumSignificantDigits: 7}) : value.toExponential(2);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const axis = more => ({stroke: () => colour("--soft"), font: "12px system-ui", labelFont: "12px system-ui",
  labelSize: 18, ticks: {show: false}, ...more});
const whole = Array.from({length: 24}, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3));
const fine = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...whole], chooser = document.getElementById("axis");
let chosen = 0;  // the horizontal axis: 0 is the iteration
function point(plot) {
  const {idx, left, top} = plot.cursor, box = plot.over.getBoundingClientRect();
  tip.style.visibility = idx == null ? "hidden" : "visible";
  if (idx == null) return;
  const there = plot.series.map((one, n) => [one.label, plot.data[n][idx]]).slice(1);
  const lines = there.filter(([name, y]) => name && y != null).map(([name, y]) => `${name}: ${text(y)}`);
  tip.textContent = [`${plot.axes[0].label} ${plot.data[0][idx].toLocaleString("en")}`, ...lines].join("\\n");
  tip.style.left = `${Math.max(8, Math.min(box.left + left + 14, innerWidth - tip.offsetWidth - 8))}px`;
  const above = box.top + top - tip.offsetHeight - 12;
  tip.style.top = `${above < 8 ? box.top + top + 16 : above}px`;
}
const reach = (_, low, high) => {  // a level curve lies in the middle
  if (low == null) return [0, 1];
  const around = high > low ? 0 : Math.abs(low) / 10 || 0.1;
  return around ? [low - around, high + around] : uPlot.rangeNum(low, high, 0.1, true);
};
let charts = [];
chooser?.addEventListener("change", () => { chosen = +chooser.value; tip.style.visibility = "hidden"; });
const chart = box => {
  const {unit, span, lines, others = [], along = "iteration"} = JSON.parse(box.dataset.chart);
  const series = [{}], bands = [], axes = [{name: along, span}, ...others];
  const steps = along === "iteration" ? () => chosen ? fine : whole : undefined;
  const place = line => chosen ? line.xs[chosen - 1] : line.x;
  const table = () => uPlot.join(lines.flatMap(line =>
    [...(line.low ? [[place(line), line.high, line.low]] : []), [place(line), line.y]]));
  for (const line of lines) {
    const stroke = () => colour(`--c${line.colour}`), base = {spanGaps: true, width: 2};
    if (line.low) {
      bands.push({series: [series.length, series.length + 1], fill: () => `${stroke()}2b`});
      series.push(...["", ""].map(label => ({...base, label, width: 0, points: {show: false}})));
    }
    series.push({...base, label: line.name, stroke, points: {show: line.x.length <= 40, fill: stroke}});
  }
  const size = () => ({width: box.clientWidth, height: Math.max(200, box.clientWidth / 2)});
  const plot = new uPlot({
    ...size(), series, bands, legend: {show: false}, cursor: {y: false}, hooks: {setCursor: [point]},
    scales: {x: {time: false, auto: false, min: span[0], max: span[1],
      range: (_, low, high) => high > low ? [low, high] : [low - 0.5, high + 0.5]}, y: {range: reach}},
    axes: [axis({grid: {show: false}, label: along, incrs: steps, size: 24}),
      axis({grid: {stroke: () => colour("--faint"), width: 1}, label: unit, values: (_, marks) => marks.map(text),
        size: (_, marks) => 14 + 7 * Math.max(2, ...(marks ?? []).map(mark => mark.length))})],
  }, table(), box);
  chooser?.addEventListener("change", () => {
    plot.axes[0].label = axes[chosen].name;
    plot.setData(table(), false);
    plot.setScale("x", {min: axes[chosen].span[0], max: axes[chosen].span[1]});
  });
  new ResizeObserver(() => plot.setSize(size())).observe(box);
  return plot;
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(plot => plot.redraw()));
const playing = matchMedia("(prefers-reduced-motion: no-preference)").matches
  ? new IntersectionObserver(seen => seen.forEach(({target, isIntersecting}) =>
    isIntersecting ? target.play().catch(() => {}) : target.pause())) : null;
function show(part) {
  charts.push(...[...part.querySelectorAll(".chart")].map(chart));
  if (playing) part.querySelectorAll("video").forEach(video => playing.observe(video));
}
show(document);
"""
