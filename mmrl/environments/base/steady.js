// Runs in every page before its own scripts: randomness from the seed, no motion, and what the environment asks.
(seed) => {
  "use strict";
  if (window.__environment) return;
  // Mulberry32: a counter whose bits are mixed; `draws` is its whole state.
  let draws = 0;
  const random = () => {
    draws += 1;
    let bits = (seed + Math.imul(draws, 0x6d2b79f5)) | 0;
    bits = Math.imul(bits ^ (bits >>> 15), bits | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 4294967296;
  };
  Math.random = random;
  Crypto.prototype.getRandomValues = (array) => {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let index = 0; index < bytes.length; index++) bytes[index] = Math.floor(random() * 256);
    return array;
  };
  Crypto.prototype.randomUUID = () => {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    bytes[6] = (bytes[6] & 15) | 64;
    bytes[8] = (bytes[8] & 63) | 128;
    const text = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    return [text.slice(0, 8), text.slice(8, 12), text.slice(12, 16), text.slice(16, 20), text.slice(20)].join("-");
  };

  const still = new CSSStyleSheet();
  still.replaceSync(`*, *::before, *::after { animation: none !important; transition: none !important;
    scroll-behavior: auto !important; caret-color: transparent !important; }`);
  document.adoptedStyleSheets.push(still);

  window.close = () => {}; // as in a tab that the user opened: a page cannot end its own episode by it

  const nextFrame = window.requestAnimationFrame.bind(window); // the true one: the page's clock stands still
  const path = (element) => {
    const steps = [];
    for (; element && element.parentElement; element = element.parentElement) {
      steps.push([...element.parentElement.children].indexOf(element));
    }
    return steps.reverse();
  };
  const field = (element) => {
    const selection = [null, null];
    try {
      selection[0] = element.selectionStart;
      selection[1] = element.selectionEnd;
    } catch {
      // some kinds of input have no selection
    }
    return [element.value, element.checked, element.indeterminate, element.selectedIndex, ...selection];
  };
  const stored = (storage) => {
    try {
      return Object.entries(window[storage]).sort();
    } catch {
      return null; // pages without an origin have none
    }
  };
  const environment = {
    frames: () => new Promise((resolve) => nextFrame(() => nextFrame(() => resolve()))),
    goal: () => window.mmrl?.goal ?? null,
    validate: (answer) => (window.mmrl?.validate ? Number(window.mmrl.validate(answer)) : 0),
    oracle: () => (window.mmrl?.oracle ? window.mmrl.oracle() ?? null : null),
    hasOracle: () => Boolean(window.mmrl?.oracle),
    state() {
      const all = [...document.querySelectorAll("*")];
      const selection = document.getSelection();
      return JSON.stringify([
        location.href,
        document.documentElement.outerHTML,
        all.filter((element) => ["INPUT", "TEXTAREA", "SELECT"].includes(element.tagName)).map(field),
        all.filter((element) => element.scrollTop || element.scrollLeft)
          .map((element) => [path(element), element.scrollTop, element.scrollLeft]),
        path(document.activeElement),
        path([...document.querySelectorAll(":hover")].at(-1)),
        selection && [path(selection.anchorNode?.parentElement), selection.anchorOffset,
          path(selection.focusNode?.parentElement), selection.focusOffset],
        [stored("localStorage"), stored("sessionStorage"), document.cookie],
        draws,
        window.mmrl?.state ? window.mmrl.state() : null,
      ]);
    },
  };
  Object.defineProperty(window, "__environment", { value: Object.freeze(environment) });
}
