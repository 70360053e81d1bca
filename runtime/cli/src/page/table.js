// A table that is sorted by a click on a column's name, and filtered by what is searched for.
//
// A column: its name, what it is about, the key that rows are sorted by, and what its cell shows. Rows that have no key
// stand last, whichever way they are sorted.

const sortedTable = ({ columns, rows, words, label, decorate = () => {} }) => {
  const state = { column: 0, down: false };
  const body = el("tbody");
  const made = rows.map(row => {
    const line = el("tr", {}, columns.map(({ name, show, kind, id }) =>
      el("td", { class: `${kind ?? ""} c-${id}`, "data-label": name }, show(row))));
    decorate(line, row);
    return line;
  });
  const order = () => {
    const { key } = columns[state.column];
    const keys = rows.map(key);
    const missing = value => value === null || value === undefined || value === "";
    const compare = (a, b) => typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return rows.map((_, i) => i).sort((a, b) => {
      const [x, y] = [keys[a], keys[b]];
      if (missing(x) || missing(y)) return missing(x) - missing(y) || a - b;
      return (state.down ? -1 : 1) * compare(x, y) || a - b;
    });
  };
  const heads = columns.map(({ name, about, kind }, i) => {
    const head = el("button", { type: "button" }, name, el("span", { class: "arrow-sign", "aria-hidden": "true" }));
    head.addEventListener("click", () => sortBy(i));
    return el("th", { class: kind, scope: "col" }, about ? tip(head, () => [about]) : head);
  });
  const choice = el("select", { class: "narrow", "aria-label": `Order of ${label}` },
    columns.map(({ name }, i) => el("option", { value: i }, `by ${name.toLowerCase()}`)));
  choice.addEventListener("change", () => sortBy(Number(choice.value)));
  let standing = [];
  const arrange = () => {
    standing = order();
    body.replaceChildren(...standing.map(i => made[i]));
    heads.forEach((head, i) => {
      if (i === state.column) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    choice.value = state.column;
  };
  // Numbers are asked for largest first, but for places.
  const sortBy = column => {
    const largest = columns[column].kind?.includes("number") && column > 0;
    state.down = column === state.column ? !state.down : Boolean(largest);
    state.column = column;
    arrange();
  };
  const filter = () => {
    let shown = 0;
    rows.forEach((row, i) => {
      const shows = matches(words(row));
      made[i].hidden = !shows;
      shown += shows;
    });
    find("found").textContent = search.words.length ? `${shown} of ${rows.length}` : "";
    nothing.hidden = shown > 0;
  };
  const nothing = el("p", { class: "hint nothing", hidden: true }, "Nothing that is searched for.");
  search.told.push(filter);
  arrange();
  const table = el("table", {}, el("caption", { class: "unseen" }, label), el("thead", {}, el("tr", {}, heads)), body);
  const pane = el("div", { class: "pane rows", tabindex: 0, role: "region", "aria-label": label }, table, nothing);
  return { pane, choice, order: () => standing.filter(i => !made[i].hidden), sortBy };
};

// A share as a bar with its number; never longer than all.
const share = (value, text, kind) => value === null || value === undefined ? "–" : el("span", { class: `share ${kind ?? ""}` },
  el("span", { class: "track" }, el("span", { style: `width:${(100 * Math.min(1, Math.max(0, value))).toFixed(1)}%` })),
  el("span", { class: "value" }, text));

// A file to save, from text that the page has.
const save = (name, text, type) => {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
};
