"""The page of `mmrl vote`: outputs of one prompt side by side, to be answered by keyboard, mouse or touch.

The document holds no task. Its script gets each one from the server, and writes people's text as text, never as HTML.
"""

from html import escape
from typing import Literal

from mmrl.reporting.document import served_policy
from mmrl.reporting.loopback import TOKEN
from mmrl.reporting.theme import STYLE as THEME

STYLE = (
    THEME
    + """
main { max-width: 1280px; padding: 20px 24px 32px; min-height: 100vh; min-height: 100dvh; display: flex;
  flex-direction: column; gap: 14px; }
.top { display: flex; align-items: center; gap: 14px; color: var(--soft); font-size: 14px; }
.top b { color: var(--ink); font-weight: 600; }
.top .by { min-width: 0; overflow-wrap: anywhere; }
.top .who { margin-left: auto; overflow-wrap: anywhere; }
.top button { font: inherit; color: inherit; background: none; border: 1px solid var(--none); border-radius: 8px;
  padding: 5px 10px; cursor: pointer; display: flex; gap: 8px; align-items: center; min-height: 32px; }
.top button:hover:enabled { border-color: var(--accent); color: var(--ink); }
progress { appearance: none; width: 100%; height: 4px; border: 0; border-radius: 2px; background: var(--faint);
  display: block; overflow: hidden; }
progress::-webkit-progress-bar { background: var(--faint); }
progress::-webkit-progress-value { background: var(--accent); }
progress::-moz-progress-bar { background: var(--accent); }
#voting { display: flex; flex-direction: column; gap: 14px; }
#prompt { font-size: 19px; line-height: 1.4; font-weight: 550; overflow-wrap: anywhere; white-space: pre-line;
  max-height: 9em; overflow: auto; }
#images { display: flex; flex-wrap: wrap; gap: 10px; }
#images:empty { display: none; }
#images img { max-width: min(100%, 420px); max-height: 34vh; border-radius: 8px; outline: 1px solid var(--none); }
#outputs { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; align-items: start; }
#outputs.three { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.choice { display: block; width: 100%; padding: 10px; margin: 0; font: inherit; color: inherit; text-align: left;
  background: var(--card); border: 2px solid var(--faint); border-radius: 14px; cursor: pointer; min-width: 0; }
.choice:hover { border-color: var(--none); }
.choice[aria-pressed="true"] { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
.choice img, .choice video { display: block; width: 100%; max-height: 62vh; object-fit: contain; border-radius: 8px;
  background: var(--faint); }
.choice img.crisp, .choice video.crisp { image-rendering: pixelated; }
.choice .answer { margin: 0; font-size: 15px; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 50vh;
  overflow: auto; padding: 6px 4px; }
.choice img + .answer { margin-top: 8px; }
.choice .label { display: flex; align-items: center; gap: 8px; font-size: 14px; color: var(--soft); margin-top: 10px; }
.choice .label .mark { margin-left: auto; color: var(--accent); font-weight: 600; visibility: hidden; }
.choice[aria-pressed="true"] .mark { visibility: visible; }
kbd { font: 600 12px/1 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; padding: 4px 7px;
  border: 1px solid var(--none); border-bottom-width: 2px; border-radius: 6px; color: var(--ink);
  background: var(--page); }
.bar { display: flex; flex-wrap: wrap; gap: 10px; justify-content: center; position: sticky; bottom: 0;
  padding: 10px 0; background: var(--page); }
.bar button { font: inherit; font-size: 15px; color: var(--ink); background: var(--card); border: 1px solid var(--none);
  border-radius: 10px; padding: 10px 16px; cursor: pointer; display: flex; gap: 9px; align-items: center;
  min-height: 44px; }
.bar button:hover { border-color: var(--accent); }
.bar button.main { border-color: var(--accent); color: var(--accent); font-weight: 600; }
button:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
button:disabled { opacity: .5; cursor: default; }
#note { color: var(--bad); overflow-wrap: anywhere; }
#note:empty { display: none; }
#end { margin: auto; text-align: center; max-width: 32em; }
#end h1 { margin-bottom: 8px; }
[hidden] { display: none !important; }
.missing { color: var(--soft); padding: 24px; text-align: center; }
@media (max-width: 640px) {
  main { padding: 14px 12px 16px; gap: 10px; }
  .top { flex-wrap: wrap; gap: 6px 14px; }
  .top .by { order: 1; flex-basis: 100%; }
  #outputs, #outputs.three { gap: 10px; grid-template-columns: repeat(2, minmax(0, 1fr)); }
  #outputs.texts, #outputs.videos { grid-template-columns: minmax(0, 1fr); }
  #prompt { font-size: 17px; }
  .choice { padding: 6px; border-radius: 12px; }
  .bar { flex-wrap: nowrap; gap: 8px; }
  .bar button { flex: 1 1 0; justify-content: center; padding: 8px 4px; font-size: 14px; min-width: 0; gap: 6px; }
  kbd { display: none; }
}
@media (pointer: coarse) { kbd { display: none; } }
"""
)

SCRIPT = """
"use strict";
const by = id => document.getElementById(id), form = document.body.dataset.form;
const make = (tag, kind, text) => Object.assign(document.createElement(tag), {className: kind, textContent: text});
let task = null, since = 0, hidden = 0, left = 0, answered = 0, isBusy = false;
const chosen = new Set();
document.addEventListener("visibilitychange", () => {
  if (document.hidden) left = performance.now();
  else if (left) { hidden += performance.now() - Math.max(left, since); left = 0; }
});
async function request(address, options) {
  isBusy = true; update();
  try {
    const response = await fetch(address, options);
    if (!response.ok) throw new Error(await response.text());
    by("note").textContent = "";
    show(await response.json());
  } catch (error) {
    by("note").textContent = error instanceof TypeError ? "The server of this page has ended." : error.message;
  }
  isBusy = false; update();
}
function show(state) {
  answered = state.answered;
  by("count").textContent = `${answered} of ${state.total}`;
  by("progress").max = state.total; by("progress").value = answered;
  if (task && state.task && task.name === state.task.name) return;
  task = state.task ?? null; chosen.clear();
  by("end").hidden = task !== null; by("voting").hidden = task === null;
  if (!task) return;
  by("prompt").textContent = task.prompt;
  by("images").replaceChildren(...task.images.map((address, n) =>
    Object.assign(new Image(), {src: address, alt: task.roles[n] ?? `image ${n + 1} of the prompt`})));
  by("outputs").replaceChildren(...task.outputs.map(card));
  const kind = task.outputs[0].kind;
  by("outputs").className = (task.outputs.length > 4 ? "three " : "") + (kind === "image" ? "" : `${kind}s`);
  scrollTo(0, 0); hidden = 0; since = performance.now();
}
function card(output, place) {
  const choice = make("button", "choice", ""), label = make("span", "label", "");
  choice.type = "button"; choice.setAttribute("aria-pressed", "false");
  if (output.address) {
    const shown = document.createElement(output.kind === "video" ? "video" : "img");
    if (output.kind === "video") Object.assign(shown, {muted: true, loop: true, autoplay: true, playsInline: true});
    else shown.alt = `output ${place + 1}`;
    if (output.crisp) shown.className = "crisp";
    shown.addEventListener("error", () => shown.replaceWith(make("span", "missing", "This cannot be shown.")));
    shown.addEventListener("loadedmetadata", () => {  // of a video as small as that every pixel is meant to be seen
      if (Math.max(shown.videoWidth, shown.videoHeight) <= 128) shown.className = "crisp";
    });
    shown.src = output.address; choice.append(shown);
  }
  if (output.kind === "text") choice.append(make("div", "answer", output.text));
  label.append(make("kbd", "", form === "pairs" ? ["\\u2190", "\\u2192"][place] : `${place + 1}`),
    make("span", "", form === "pairs" ? "this one is better" : `output ${place + 1}`),
    make("span", "mark", "good"));
  choice.append(label);
  choice.addEventListener("click", () => form === "pairs" ? answer([place]) : toggle(place));
  return choice;
}
function update() {
  for (const button of document.querySelectorAll(".bar button")) button.disabled = isBusy || !task;
  by("undo").disabled = isBusy || !answered;
  [...by("outputs").children].forEach((one, n) => one.setAttribute("aria-pressed", chosen.has(n)));
  if (form === "grid") by("done").querySelector("span").textContent =
    chosen.size ? `${chosen.size} ${chosen.size > 1 ? "are" : "is"} good` : "none is good";
}
function toggle(place) {
  if (isBusy || !task || place >= task.outputs.length) return;
  if (!chosen.delete(place)) chosen.add(place);
  update();
}
function answer(places) {
  if (isBusy || !task || (places ?? []).some(place => place >= task.outputs.length)) return;
  const seconds = Math.max(0, performance.now() - since - hidden) / 1000;
  places?.forEach(place => chosen.add(place));
  post("answer", {task: task.name, chosen: places, seconds});
}
function post(address, body) {
  request(address, {method: "POST", headers: {"Content-Type": "application/json",
    [document.body.dataset.header]: document.body.dataset.token}, body: JSON.stringify(body)});
}
function undo() {
  if (!isBusy && answered) post("undo", {});
}
const done = () => answer([...chosen].sort());
const keys = form === "pairs"
  ? {ArrowLeft: () => answer([0]), "1": () => answer([0]), ArrowRight: () => answer([1]), "2": () => answer([1]),
     ArrowDown: () => answer([]), "0": () => answer([]), t: () => answer([]), s: () => answer(null)}
  : {s: () => answer(null), Enter: done, "0": () => { chosen.clear(); update(); }};
if (form === "grid") for (let n = 1; n <= 9; n++) keys[n] = () => toggle(n - 1);
keys.Backspace = undo;
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || !Object.hasOwn(keys, event.key)) return;
  event.preventDefault(); keys[event.key]();
});
by("undo").addEventListener("click", undo);
by("skip").addEventListener("click", () => answer(null));
by("done").addEventListener("click", () => form === "pairs" ? answer([]) : done());
request("task");
"""


_CRITERION = "by how well it follows the prompt, then by how well it is made"
_QUESTION = {"pairs": "Which one is better?", "grid": "Which ones are good?"}


def vote_page(form: Literal["pairs", "grid"], voter: str, token: str, criterion: str) -> tuple[str, str]:
    """Returns the document and its Content-Security-Policy; `criterion`: by what outputs are compared, or ""."""
    by = escape(criterion or _CRITERION)
    done = ("&darr;", "tie") if form == "pairs" else ("Enter", "none is good")
    document = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>mmrl vote</title><style>{STYLE}</style></head>"
        f'<body data-form="{form}" data-token="{escape(token)}" data-header="{TOKEN}"><main>'
        f'<div class="top"><b>{_QUESTION[form]}</b><span class="by">{by}</span>'
        f'<span class="who">{escape(voter)} &middot; <span id="count"></span>'
        '</span><button type="button" id="undo" title="take back the last answer" disabled><kbd>Backspace</kbd>'
        '<span>undo</span></button></div><progress id="progress" max="1" value="0" aria-label="answered"></progress>'
        '<p id="note" role="alert"></p><div id="voting" hidden><p id="prompt"></p>'
        '<div id="images"></div><div id="outputs"></div><div class="bar">'
        f'<button type="button" id="done" class="main"><kbd>{done[0]}</kbd><span>{done[1]}</span></button>'
        '<button type="button" id="skip"><kbd>S</kbd><span>skip</span></button></div></div>'
        '<div id="end" hidden><h1>All answered</h1><p class="about">Every answer is saved. You can close this page; '
        f"Ctrl-C in the terminal prints the summary.</p></div></main><script>{SCRIPT}</script></body></html>\n"
    )
    return document, served_policy(STYLE, SCRIPT)
