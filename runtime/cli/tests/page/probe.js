// Looks at a page in a frame of this document as its reader would, and says what it saw.

const asked = JSON.parse(document.getElementById("asked").textContent);
const frame = document.getElementById("frame");

// Colours as four bytes, however they are written.
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = colour => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
const luminance = colour => {
  const [r, g, b] = colour.slice(0, 3).map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
  const [dark, bright] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (bright + 0.05) / (dark + 0.05);
};

const probe = view => {
  const page = view.document;
  const root = page.documentElement;
  const style = made => view.getComputedStyle(made);
  const shown = made => made.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const all = (selector, within = page) => [...within.querySelectorAll(selector)];
  const text = made => made.innerText ?? made.textContent;
  const visibleRows = () => all("tr[data-row]").filter(shown);

  // What stands behind an element: its own ground and those around it, one over the other.
  const ground = made => {
    const layers = [];
    for (let at = made; at; at = at.parentElement) {
      const box = at instanceof view.SVGElement && at.matches("g") ? at.querySelector(":scope > rect:last-of-type") : null;
      const colour = rgba(box ? style(box).fill : style(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), rgba("Canvas"));
  };
  const dim = made => {
    let opacity = 1;
    for (let at = made; at; at = at.parentElement) opacity *= Number(style(at).opacity);
    return opacity;
  };
  const faint = () => {
    const found = new Map();
    const walker = page.createTreeWalker(page.body, view.NodeFilter.SHOW_TEXT);
    let looked = 0;
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const made = node.parentElement;
      if (!node.data.trim() || made.closest("script, style, .unseen, .skip, option") || !shown(made)) continue;
      const { fontSize, fontWeight, color, fill } = style(made);
      const ink = rgba(made instanceof view.SVGElement ? fill : color);
      const below = ground(made);
      const large = parseFloat(fontSize) >= 24 || (parseFloat(fontSize) >= 18.66 && fontWeight >= 700);
      const ratio = contrast(over([...ink.slice(0, 3), ink[3] * dim(made)], below), below);
      looked += 1;
      if (ratio < (large ? 3 : 4.5)) found.set(`${made.tagName}.${made.getAttribute("class")} ${node.data.trim().slice(0, 30)}`, ratio.toFixed(2));
    }
    return { looked, found: [...found] };
  };
  const type = words => {
    const input = page.getElementById("search");
    input.value = words;
    input.dispatchEvent(new view.InputEvent("input", { bubbles: true }));
    const rows = visibleRows().map(row => row.dataset.row);
    return { rows, said: page.getElementById("found").textContent, boxes: all("#drawing .box:not(.off)").length };
  };
  const press = (made, key) => made.dispatchEvent(new view.KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const dock = () => {
    const made = page.getElementById("dock");
    return made && !made.hidden ? text(made) : null;
  };
  const sort = name => {
    const head = all("th button").find(button => text(button).trim().startsWith(name));
    head.click();
    return { rows: visibleRows().map(row => row.dataset.row), order: head.closest("th").getAttribute("aria-sort") };
  };
  const saved = () => {
    let blob = null;
    view.URL.createObjectURL = made => { blob = made; return "#"; };
    view.HTMLAnchorElement.prototype.click = () => {};
    page.getElementById("csv")?.click();
    return blob?.text();
  };

  const seen = {
    error: root.dataset.error ?? null,
    ready: root.dataset.ready ?? null,
    width: view.innerWidth,
    dark: luminance(ground(page.body)) < 0.2,
    overflow: root.scrollWidth - root.clientWidth,
    wide: all("body *").filter(made => shown(made) && !made.closest(".pane, .unseen, svg, .skip") && made.getBoundingClientRect().right > root.clientWidth + 1)
      .map(made => `${made.tagName}.${made.className}`),
    text: text(page.body),
    sections: all("section").map(made => ({ id: made.id, height: made.getBoundingClientRect().height, text: text(made).length })),
    heads: all("#steps th button").map(text),
    rows: all("tr[data-row]").map(row => [...row.cells].map(text)),
    rowHeights: visibleRows().length,
    reasons: all("[data-reason]").map(made => Number(made.dataset.reason)),
    edges: all("[data-stored]").length,
    fileNames: all("[onerror], img, iframe, link").map(made => made.tagName),
    unnamed: all("button, input, select, a").filter(made => shown(made) && !(text(made).trim() || made.getAttribute("aria-label"))).length,
  };
  const themed = page.getElementById("theme");
  const toggled = () => {
    const dark = () => luminance(ground(page.body)) < 0.2;
    return [1, 2, 3].map(() => { themed.click(); return dark(); });
  };
  seen.faint = faint();
  if (asked.search) seen.searches = asked.search.map(type), type("");
  if (asked.sort) seen.sorts = asked.sort.map(sort);
  if (asked.walk) {
    const pane = page.querySelector(".rows");
    press(pane, "ArrowDown");
    press(pane, "ArrowDown");
    seen.walked = { dock: dock(), lit: all("tr.lit").map(row => row.dataset.row) };
    press(pane, "Escape");
    seen.closed = dock();
    press(page.body, "/");
    seen.slash = page.activeElement?.id;
    const edge = page.querySelector("[data-stored]");
    edge?.dispatchEvent(new view.MouseEvent("click", { bubbles: true }));
    seen.edge = dock();
    press(page.body, "Escape");
    page.querySelector("[data-reason]")?.click();
    seen.reason = dock();
    press(page.body, "Escape");
  }
  seen.toggled = toggled();
  return Promise.resolve(saved()).then(csv => ({ ...seen, csv: csv ?? null }));
};

const answer = seen => {
  const bytes = new TextEncoder().encode(JSON.stringify(seen));
  document.documentElement.dataset.seen = Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");
};
frame.addEventListener("load", () => {
  try {
    probe(frame.contentWindow).then(answer, error => answer({ error: String(error?.stack ?? error) }));
  } catch (error) {
    answer({ error: String(error?.stack ?? error) });
  }
});
frame.width = asked.width;
frame.height = asked.height;
frame.srcdoc = JSON.parse(document.getElementById("page").textContent);
