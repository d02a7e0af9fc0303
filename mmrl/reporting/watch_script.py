"""The script of the live page: replaces the parts that changed, and leaves the place and what is open as they are."""

WATCH_STYLE = """
.status { color: var(--soft); margin-top: 12px; }
.status.live::before { content: ""; display: inline-block; width: 9px; height: 9px; border-radius: 50%;
  background: var(--good); margin-right: 8px; }
.chooser { display: flex; gap: 6px; margin: 0 0 12px; flex-wrap: wrap; }
.chooser select, .chooser button { font: inherit; color: inherit; background: var(--card); padding: 5px 10px;
  border: 1px solid var(--none); border-radius: 8px; max-width: 100%; min-height: 36px; }
.chosen > * + * { margin-top: 14px; }
html { scroll-behavior: auto; }
"""

WATCH_SCRIPT = """
const held = new Map(), picks = {}, EVERY = 2000;
let version = "";
const parts = document.getElementById("parts");
const opened = part => new Set([...part.querySelectorAll("details[open]")].map(one => one.dataset.name ?? ""));
function inserted(part, html) {
  const open = opened(part), film = [...part.querySelectorAll(".wide-table")].map(one => one.scrollLeft);
  charts = charts.filter(plot => part.contains(plot.root) ? plot.destroy() : true);
  part.innerHTML = html;
  part.querySelectorAll("details").forEach(one => one.open = open.has(one.dataset.name ?? ""));
  part.querySelectorAll(".wide-table").forEach((one, n) => one.scrollLeft = film[n] ?? 0);
  show(part);
}
async function choose(select, must) {
  const kind = select.dataset.kind, box = select.closest("section").querySelector(".chosen");
  const iteration = select.value === "newest" ? select.dataset.newest : select.value;
  const name = `${iteration} ${iteration === "all" || iteration === select.dataset.newest ? box.dataset.stamp : ""}`;
  picks[kind] ??= {};
  picks[kind].value = select.value;
  if (picks[kind].name !== name || must) {
    const answer = await fetch(`/${kind}?iteration=${encodeURIComponent(iteration)}`);
    if (!answer.ok || select.value !== picks[kind].value) return;
    Object.assign(picks[kind], {name, html: await answer.text()});
  }
  if (box.isConnected) settled(() => { inserted(box, picks[kind].html); });
}
function settled(change) {
  const first = [...parts.children].find(part => part.getBoundingClientRect().bottom > 0);
  const before = first?.getBoundingClientRect().top;
  change();
  if (first?.isConnected && scrollY > 0) scrollBy(0, first.getBoundingClientRect().top - before);
}
function update(list) {
  const names = list.map(([name]) => name).filter(name => name !== "notice");
  for (const [name, part] of held) if (!names.includes(name)) { part.remove(); held.delete(name); }
  document.getElementById("notice").innerHTML = Object.fromEntries(list).notice ?? "";
  let after = null;
  for (const [name, html] of list.filter(([name]) => name !== "notice")) {
    let part = held.get(name);
    if (!part) held.set(name, part = document.createElement("div"));
    if (after ? after.nextSibling !== part : parts.firstChild !== part)
      parts.insertBefore(part, after ? after.nextSibling : parts.firstChild);
    after = part;
    if (part.source === html) continue;
    part.source = html;
    inserted(part, html);
    const select = part.querySelector("select[data-kind]");
    if (!select) continue;
    const pick = picks[select.dataset.kind];
    if (pick && [...select.options].some(one => one.value === pick.value)) select.value = pick.value;
    if (pick?.html) inserted(part.querySelector(".chosen"), pick.html);
    choose(select);
  }
}
parts.addEventListener("change", event => { if (event.target.dataset.kind) choose(event.target); });
parts.addEventListener("click", event => {
  const step = Number(event.target.dataset.step);
  if (!step) return;
  const select = event.target.parentElement.querySelector("select");
  const last = select.options.length - 1, start = [...select.options].findIndex(one => /^[0-9]+$/.test(one.value));
  const now = /^[0-9]+$/.test(select.value) ? select.selectedIndex : start;
  select.selectedIndex = Math.min(last, Math.max(start, now + step));
  choose(select);
});
async function poll() {
  try {
    if (document.visibilityState === "visible" || !version) {
      const answer = await fetch(`/state?have=${version}`);
      if (answer.status === 200) {
        const news = await answer.json();
        settled(() => update(news.parts));
        version = news.version;
      }
    }
    document.body.classList.remove("lost");
  } catch (error) {
    document.getElementById("notice").innerHTML =
      '<p class="warning">The server of this page has ended; the numbers are the last ones.</p>';
    if (!(error instanceof TypeError)) throw error;
  }
  setTimeout(poll, EVERY);
}
poll();
"""
