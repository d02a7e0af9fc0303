"use strict";
// What the tasks share. Math.random is seeded by the environment, so a page is a function of its seed.
const task = {
  FIRST: ["Ada", "Boris", "Chloe", "David", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Liam"],
  LAST: ["Abel", "Brandt", "Costa", "Duval", "Ekström", "Fischer", "Garcia", "Haddad", "Ito", "Jensen"],
  CITIES: ["Oslo", "Lima", "Cairo", "Kyoto", "Quito", "Turin", "Porto", "Delhi", "Perth", "Dakar"],
  COLOURS: ["red", "green", "blue", "orange", "purple", "grey"],
  THINGS: ["lamp", "chair", "kettle", "mirror", "carpet", "shelf", "clock", "basket", "candle", "vase", "ladder", "stool"],

  int: (from, to) => from + Math.floor(Math.random() * (to - from + 1)),
  pick: (list) => list[Math.floor(Math.random() * list.length)],
  shuffle(list) {
    const mixed = [...list];
    for (let i = mixed.length - 1; i > 0; i--) {
      const j = task.int(0, i);
      [mixed[i], mixed[j]] = [mixed[j], mixed[i]];
    }
    return mixed;
  },
  sample: (list, count) => task.shuffle(list).slice(0, count),
  code: () => Array.from({ length: 5 }, () => task.pick([..."abcdefghkmnprstuwxyz23456789"])).join(""),

  // An element with its properties, put at the end of its parent.
  add(parent, tag, properties = {}) {
    const element = Object.assign(document.createElement(tag), properties);
    parent.append(element);
    return element;
  },

  // For oracles: the middle of what is seen of an element.
  middle(element) {
    const box = element.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  },
  scroller(element) {
    for (let parent = element.parentElement; parent && parent !== document.body; parent = parent.parentElement) {
      const isScrolled = ["auto", "scroll"].includes(getComputedStyle(parent).overflowY);
      if (isScrolled && parent.scrollHeight > parent.clientHeight) return parent;
    }
    return null;
  },
  // The action on the middle of an element, or the scroll that brings it into view first.
  on(element, kind = "click", more = {}) {
    const holder = task.scroller(element);
    const [x, y] = task.middle(element);
    const view = holder ? holder.getBoundingClientRect() : { top: 0, bottom: innerHeight, left: 0, right: innerWidth };
    if (holder && (view.top < 0 || view.bottom > innerHeight)) {
      const off = (view.top + view.bottom - innerHeight) / 2;
      if (Math.abs(off) > 1) return task.scroll(innerWidth - 4, innerHeight / 2, off);
    }
    if (y < view.top + 4 || y > view.bottom - 4) {
      return task.scroll((view.left + view.right) / 2, (view.top + view.bottom) / 2, y - (view.top + view.bottom) / 2);
    }
    return { kind, point: [x, y], ...more };
  },
  scroll: (x, y, by) => ({
    kind: "scroll", point: [x, y], direction: by > 0 ? "down" : "up", amount: Math.ceil(Math.abs(by)),
  }),
  // The next action that brings a text into a field; null where it is there.
  fill(field, text) {
    if (field.value === text) return null;
    if (document.activeElement !== field) return task.on(field);
    const isSelected = field.selectionStart === 0 && field.selectionEnd === field.value.length;
    return field.value && !isSelected ? { kind: "hotkey", keys: ["ctrl", "a"] } : { kind: "type", text };
  },
  // What the environment asks of a page. `solved(answer)`: whether the goal is reached; `next()`: the oracle's action.
  declare({ goal, solved, next, state = () => null }) {
    window.mmrl = { goal, validate: (answer) => (solved(answer) ? 1 : 0), oracle: next, state };
  },
};
