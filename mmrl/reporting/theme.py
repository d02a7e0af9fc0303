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
.tile.main .value b.worse, .lead strong.worse { color: var(--bad); }
.tile.main .value span { color: var(--soft); font-weight: 400; }
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
.legend b, .constant b { font-weight: 600; color: var(--ink); white-space: nowrap; }
.constant { color: var(--soft); font-size: 14px; overflow-wrap: anywhere; }
.grid + .constant { margin-top: 14px; }
.swatch { width: 10px; height: 10px; display: inline-block; border-radius: 3px; margin-right: 6px; }
.chart { display: block; width: 100%; height: auto; touch-action: pan-y; overflow: visible; }
.chart text { font-size: 12.5px; fill: var(--soft); }
.three .chart text { font-size: 16px; }
.chart .unit { opacity: .85; }
.chart .rule { stroke: var(--faint); stroke-width: 1; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.three .chart .line { stroke-width: 2.8; }
.chart .line.thin, .three .chart .line.thin { stroke-width: 1.2; }
.chart .band { opacity: .17; }
.chart .cursor { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; visibility: hidden; }
.chart.on .cursor { visibility: visible; }
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
@media (max-width: 900px) {
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
  .tiles { gap: 10px; }
  .tile .value { font-size: 18px; }
  .tile.main .value { font-size: 34px; }
  .chart text, .three .chart text { font-size: 17px; }
  .chart .line { stroke-width: 2.6; }
  .optional { display: none; }
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
const nearest = (xs, at) => xs.reduce((best, x, i) => Math.abs(x - at) < Math.abs(xs[best] - at) ? i : best, 0);
const text = value => Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 || value === 0
  ? value.toLocaleString("en", {maximumSignificantDigits: 5}) : value.toExponential(2);
for (const chart of document.querySelectorAll("svg.chart")) {
  const lines = JSON.parse(chart.dataset.lines);
  const [low, high, start, end] = JSON.parse(chart.dataset.across);
  const cursor = chart.querySelector(".cursor");
  chart.addEventListener("pointermove", event => {
    const box = chart.getBoundingClientRect(), scale = chart.viewBox.baseVal.width / box.width;
    const at = low + ((event.clientX - box.left) * scale - start) / (end - start) * (high - low);
    const closest = lines.map(line => line.x[nearest(line.x, at)]);
    const iteration = closest[nearest(closest, at)];
    const shown = lines.filter((line, i) => closest[i] === iteration);
    tip.textContent = [`iteration ${iteration.toLocaleString("en")}`,
      ...shown.map(line => `${line.name}: ${text(line.y[nearest(line.x, at)])}`)].join("\\n");
    const x = start + (iteration - low) / (high - low) * (end - start);
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x);
    chart.classList.add("on");
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above < 8 ? event.clientY + 16 : above}px`;
    tip.style.visibility = "visible";
  });
  chart.addEventListener("pointerleave", () => { chart.classList.remove("on"); tip.style.visibility = "hidden"; });
}
if (matchMedia("(prefers-reduced-motion: no-preference)").matches) {
  const watch = new IntersectionObserver(seen => seen.forEach(({target, isIntersecting}) =>
    isIntersecting ? target.play().catch(() => {}) : target.pause()));
  document.querySelectorAll("video").forEach(video => watch.observe(video));
}
"""
