"use strict";
// Data, numbers as people read them, elements, and what all parts share: the step that is looked at.

const { report, picture } = JSON.parse(document.getElementById("data").textContent);
const executor = name => report.executors.find(entry => entry.name === name);
const fused = executor("fused");
const library = executor("library");
const profile = fused?.profile;
const find = id => document.getElementById(id);

// An element with attributes and children. Text is text: names of models are never read as markup.
const filled = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter(child => child !== undefined && child !== null && child !== false));
  return made;
};
const el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
const space = find("drawing").namespaceURI;
const svg = (tag, attributes, ...children) => filled(document.createElementNS(space, tag), attributes, children);

const digits = value => {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
};
const scaled = (value, step, units) => {
  let unit = 0;
  while (value >= 0.9995 * step && unit + 1 < units.length) { value /= step; unit += 1; }
  return `${unit === 0 && Number.isInteger(value) ? value : digits(value)} ${units[unit]}`;
};
const bytes = value => scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"]);
const count = value => scaled(value, 1000, ["", "k", "M", "G", "T"]).trim();
const micros = value => value > 0 && value < 1 ? `${Math.round(value * 1000)} ns` : scaled(value, 1000, ["µs", "ms", "s"]);
const times = value => `${digits(value)}×`;
const counted = (number, one, many) => `${number} ${number === 1 ? one : many}`;
const family = name => `f-${name.toLowerCase()}`;
// Where in the model: the last two parts of a node's path.
const place = name => {
  const [, operations, path] = /^(.*) \((.*)\)$/s.exec(name) ?? [null, name, ""];
  return { operations, path: path.split("/").filter(Boolean).slice(-3).join("/") };
};

// Parts of the page that belong to steps, by step.
const parts = new Map();
const part = (made, steps) => {
  made.classList.add("part");
  made.dataset.steps = steps.join(" ");
  for (const step of steps) {
    if (!parts.has(step)) parts.set(step, []);
    parts.get(step).push(made);
  }
  return made;
};

const look = { pinned: null, lit: [], changed: [] };
const light = steps => {
  for (const made of look.lit) made.classList.remove("lit");
  look.lit = steps.flatMap(step => parts.get(step) ?? []);
  for (const made of look.lit) made.classList.add("lit");
  document.body.classList.toggle("picking", steps.length > 0);
  for (const told of look.changed) told(steps);
};
const pin = (steps, from) => {
  look.pinned = steps.length > 0 ? steps : null;
  light(steps);
  if (!steps.length) return;
  // Every other part that scrolls shows the step too.
  for (const made of look.lit) {
    const pane = made.closest(".pane");
    if (!pane || pane === from) continue;
    const [inner, outer] = [made.getBoundingClientRect(), pane.getBoundingClientRect()];
    if (made.dataset.steps.split(" ")[0] !== String(steps[0])) continue;
    pane.scrollTop += inner.top + inner.height / 2 - outer.top - outer.height / 2;
    pane.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
  }
};
const stepsOf = made => made.dataset.steps.split(" ").map(Number);

document.addEventListener("pointerover", event => {
  const over = event.target.closest?.(".part");
  if (over) light(stepsOf(over));
  else if (look.lit.length) light(look.pinned ?? []);
});
document.addEventListener("click", event => {
  const on = event.target.closest?.(".part");
  if (on) pin(stepsOf(on), on.closest(".pane"));
  else if (!event.target.closest?.("button, select, input, summary, aside, pre")) pin([], null);
});
// Arrow keys walk along the steps of what has the focus; `walk` lists them as they stand there.
const walkable = (pane, walk) => pane.addEventListener("keydown", event => {
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  if (event.key === "Escape") return pin([], null);
  if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const all = walk();
  const now = look.pinned ? all.findIndex(steps => steps.includes(look.pinned[0])) : -1;
  const next = now < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, now + by));
  if (all[next]) pin(all[next], null);
});

// A slider that makes what is in a pane wider.
const zoom = (tools, pane, name) => {
  const slider = el("input", { type: "range", min: 0, max: 5, step: 0.25, value: 0, "aria-label": `Zoom of ${name}` });
  slider.addEventListener("input", () => {
    const middle = (pane.scrollLeft + pane.clientWidth / 2) / pane.scrollWidth;
    pane.style.setProperty("--zoom", 2 ** slider.value);
    pane.scrollLeft = middle * pane.scrollWidth - pane.clientWidth / 2;
  });
  tools.append(el("label", {}, "zoom ", slider));
};
