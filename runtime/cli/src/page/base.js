"use strict";
// What all pages share: elements, numbers as people read them, colours, tooltips, sections.

const data = JSON.parse(document.getElementById("data").textContent);
const find = id => document.getElementById(id);

// An element with attributes and children. Text is text: names of models are never read as markup.
const filled = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter(child => child !== undefined && child !== null && child !== false));
  return made;
};
const el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
const space = document.querySelector("svg").namespaceURI;
const svg = (tag, attributes, ...children) => filled(document.createElementNS(space, tag), attributes, children);
const button = (text, name, act, attributes) => {
  const made = el("button", { type: "button", "aria-label": name, ...attributes }, text);
  if (name) tip(made, () => [name]);
  made.addEventListener("click", act);
  return made;
};

// Three significant digits.
const digits = value => {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 0.001) return "<0.001";
  if (size < 0.0995) return Number(value.toPrecision(2)).toString();
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
};
const scaled = (value, step, units) => {
  let unit = 0;
  while (Math.abs(value) >= 0.9995 * step && unit + 1 < units.length) { value /= step; unit += 1; }
  return `${unit === 0 && Number.isInteger(value) ? value : digits(value)} ${units[unit]}`;
};
const bytes = value => scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"]);
const count = value => scaled(value, 1000, ["", "k", "M", "G", "T"]).trim();
const micros = value => value > 0 && value < 1 ? `${Math.round(value * 1000)} ns` : scaled(value, 1000, ["µs", "ms", "s"]);
const millis = value => micros(value * 1e3);
const times = value => `${digits(value)}×`;
const percent = value => `${(100 * value).toFixed(1)} %`;
const counted = (number, one, many) => `${number} ${number === 1 ? one : many}`;
const error = value => value === 0 ? "0" : value === null || value === undefined ? "–" : value.toExponential(1);
// The last parts of a path, which tell more than the first.
const tail = (text, most) => {
  if (text.length <= most) return text;
  const from = text.length - most + 1;
  // From the beginning of a part, if one begins there.
  const part = text.slice(from - 1).search(/[./]/);
  const at = part < 0 ? from : from + part;
  return `…${text.slice(at < text.length ? at : from)}`;
};
// A command line, whose arguments are not broken where they have hyphens.
const commandLine = text => el("code", { class: "command" }, text.split(" ").flatMap((word, i) => [i > 0 && " ", el("span", {}, word)]));
const family = name => `f-${name.toLowerCase()}`;
const swatch = () => el("span", { class: "swatch" });

// A tooltip, by what is below the pointer or has the focus.
const tips = new WeakMap();
const tip = (made, text) => {
  made.dataset.tip = "";
  tips.set(made, text);
  return made;
};
const shownTip = { of: null };
const hideTip = () => {
  shownTip.of = null;
  find("tip").hidden = true;
};
const showTip = (on, x, y) => {
  const box = find("tip");
  if (shownTip.of !== on) {
    const text = tips.get(on)?.();
    if (!text?.length) return hideTip();
    box.replaceChildren(...text.filter(Boolean).map(line => el("div", {}, line)));
    box.hidden = false;
    shownTip.of = on;
  }
  const { offsetWidth: width, offsetHeight: height } = box;
  box.style.left = `${Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - width - 4))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
};
document.addEventListener("pointermove", event => {
  // A finger covers what a tooltip would say; a tap tells it elsewhere.
  const on = event.pointerType === "touch" ? null : event.target.closest?.("[data-tip]");
  if (on) showTip(on, event.clientX, event.clientY);
  else hideTip();
});
document.addEventListener("pointerleave", hideTip);
document.addEventListener("scroll", hideTip, { capture: true, passive: true });
document.addEventListener("focusin", event => {
  const on = event.target.closest?.("button[data-tip]");
  if (!on?.matches(":focus-visible")) return hideTip();
  const { left, bottom } = on.getBoundingClientRect();
  showTip(on, left, bottom - 12);
});

// Colours: as the system has them, or as is chosen.
const themes = [["", "◐", "as the system has them"], ["light", "☀", "light"], ["dark", "☾", "dark"]];
const theme = find("theme");
const paint = index => {
  const [name, sign, said] = themes[index];
  document.documentElement.dataset.theme = name;
  theme.textContent = sign;
  theme.setAttribute("aria-label", `Colours: ${said}`);
  theme.dataset.index = index;
};
tip(theme, () => [theme.getAttribute("aria-label")]);
theme.addEventListener("click", () => {
  paint((Number(theme.dataset.index) + 1) % themes.length);
  hideTip();
});
paint(0);

// What is searched for: all of its words have to be in a text. `told` hear whether a text has them.
const search = { words: [], told: [] };
const matches = text => search.words.every(word => text.includes(word));
const lookFor = text => {
  search.words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const tell of search.told) tell();
};
const searchFor = text => {
  const input = find("search");
  input.value = input.value === text ? "" : text;
  lookFor(input.value);
};
find("search").addEventListener("input", event => lookFor(event.target.value));
find("search").addEventListener("keydown", event => {
  if (event.key !== "Escape" || !event.target.value) return;
  event.stopPropagation();
  event.preventDefault();
  event.target.value = "";
  lookFor("");
});
document.addEventListener("keydown", event => {
  if (event.key !== "/" || event.target.closest?.("input, select, textarea")) return;
  event.preventDefault();
  find("search").focus();
});

// Links to the sections that there are.
const navigation = () => {
  for (const section of document.querySelectorAll("section[data-nav]")) {
    find("nav").append(el("a", { href: `#${section.id}` }, section.dataset.nav));
  }
};
// For tests: all of it ran.
const done = () => document.documentElement.dataset.ready = "yes";
