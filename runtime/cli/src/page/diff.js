// The page of a comparison.

const { files, facts, executors, steps, estimated, notes } = data.diff;
const change = ({ before, after }) => before > 0 && after !== null ? after / before - 1 : null;
const signed = share => share === null ? "–" : Math.abs(share) < 0.0005 ? "0 %" : `${share > 0 ? "+" : "−"}${(100 * Math.abs(share)).toFixed(1)} %`;
// Less time is better; what is within noise, or next to nothing, is neither.
const verdict = (share, noise) => share === null || noise || Math.abs(share) < 0.01 ? "" : share < 0 ? "good" : "bad";
const either = (value, show) => value === null || value === undefined ? "–" : show(value);
const arrow = ({ before, after }, show) => [either(before, show), el("span", { class: "quiet" }, " → "), either(after, show)];

const tile = (label, value, more, kind) => el("div", { class: `tile ${kind ?? ""}` },
  el("span", { class: "quiet" }, label), el("strong", {}, value), el("span", { class: "quiet" }, more));
const tiles = executors.flatMap(({ name, median_ms: median, noise, launches, arena_bytes: arena }) => [
  median.before !== null && median.after !== null &&
    tile(`${name}, median`, signed(change(median)), [...arrow(median, millis), noise && ", within noise"], verdict(change(median), noise)),
  launches.before !== null && launches.before !== launches.after && tile(`${name}, launches`, signed(change(launches)), arrow(launches, String), verdict(change(launches))),
  arena.before !== null && arena.after !== null && arena.before !== arena.after && tile(`${name}, arena`, signed(change(arena)), arrow(arena, bytes), verdict(change(arena))),
]).filter(Boolean);
const sum = which => steps.reduce((sum, step) => sum + (step.time_us[which] ?? 0), 0);
const ofStatus = status => steps.filter(step => step.status === status).length;
const all = { before: sum("before"), after: sum("after") };
if (steps.length) {
  tiles.push(tile(estimated.before && estimated.after ? "all steps, estimated" : "all steps", signed(change(all)), arrow(all, micros), verdict(change(all))));
  tiles.push(tile("steps", `${ofStatus("both")} in both`, `${ofStatus("new")} new, ${ofStatus("gone")} gone`));
}

const differing = facts.filter(fact => fact.matters && fact.before !== fact.after).map(fact => fact.what);
const factLine = ({ what, before, after, matters }) => el("tr", { class: before !== after && matters ? "differs" : "" },
  el("th", { scope: "row" }, what), [before, after].map(text => el("td", {}, what === "command" ? commandLine(text) : text || "–")));
filled(find("overview"), {}, [
  el("div", { class: "tiles" }, tiles),
  differing.length > 0 && el("p", { class: "notice" }, el("span", { class: "badge" }, "not alike"),
    ` The two differ in ${differing.join(", ")}: a change of times may come from that.`),
  el("div", { class: "card" }, el("h2", {}, "What is compared"),
    el("div", { class: "pane wide-table", tabindex: 0, role: "region", "aria-label": "What is compared" },
      el("table", { class: "plain facts" }, el("thead", {}, el("tr", {}, el("th", {}), el("th", { scope: "col" }, files.before), el("th", { scope: "col" }, files.after))),
        el("tbody", {}, facts.map(factLine)))),
    notes.length > 0 && el("ul", { class: "verdicts" }, notes.map(note => el("li", {}, note)))),
]);

// By how much a step takes longer or shorter, from the middle.
const largest = Math.max(...steps.map(({ time_us: { before, after } }) => Math.abs((after ?? 0) - (before ?? 0))), 1e-9);
const delta = ({ time_us: { before, after } }) => (after ?? 0) - (before ?? 0);
const diverging = step => {
  const by = delta(step);
  const width = (50 * Math.abs(by) / largest).toFixed(1);
  return el("span", { class: "share diverging" }, el("span", { class: "track" },
    el("span", { class: by > 0 ? "bad" : "good", style: by > 0 ? `left:50%;width:${width}%` : `right:50%;width:${width}%` })),
  el("span", { class: "value" }, `${by > 0 ? "+" : by < 0 ? "−" : ""}${micros(Math.abs(by))}`));
};
const status = { both: "both", new: "new", gone: "gone" };
const [operators, path] = [/ \(.*$/s, /^.* \((.*)\)$/s];
const columns = [
  { name: "#", id: "place", about: "The step's place in the later program, or in the earlier one if it is gone", kind: "number place", key: ({ step }) => step.after ?? steps.length + step.before,
    show: ({ step: { before, after } }) => before === after || before === null || after === null ? `${after ?? before}` : `${before} → ${after}` },
  { name: "Family", id: "family", kind: "family", key: step => step.family, show: step => [swatch(), step.family] },
  { name: "Operators", id: "operators", kind: "long", key: step => step.name, show: step => step.name.replace(operators, "").replaceAll("+", ", ") },
  { name: "Where", id: "module", about: "Where in the model", kind: "long", key: step => path.exec(step.name)?.[1] ?? "", show: step => tail(path.exec(step.name)?.[1] ?? "", 36) },
  { name: "In", id: "in", about: "Which of the two has the step", kind: "types", key: step => step.status, show: ({ status }) => status === "both" ? el("span", { class: "wide-only" }, status) : el("span", { class: `pill ${status}` }, status) },
  { name: "Before", id: "before", kind: "number", key: step => step.time_us.before, show: step => either(step.time_us.before, micros) },
  { name: "After", id: "after", kind: "number", key: step => step.time_us.after, show: step => either(step.time_us.after, micros) },
  { name: "Change", id: "change", about: "By how much the step takes longer or shorter", kind: "number", key: step => change(step.time_us),
    show: step => el("span", { class: `pill ${verdict(change(step.time_us))}` }, signed(change(step.time_us))) },
  { name: "Difference", id: "difference", about: "Of all that changed", kind: "number bar-cell", key: delta, show: diverging },
  steps.some(({ library_us: { before, after } }) => before || after) &&
    { name: "Library", id: "library", about: "Library execution of the same operators", kind: "number", key: step => step.library_us.after, show: step => arrow(step.library_us, micros) },
].filter(Boolean);

if (steps.length) {
  const table = sortedTable({
    columns, rows: steps, label: "steps", words: step => `${step.name} ${step.family} ${status[step.status]}`.toLowerCase(),
    decorate: (line, step) => {
      line.classList.add(family(step.family), step.status);
      line.dataset.row = step.status;
      tip(line, () => [step.name]);
    },
  });
  find("steps-tools").append(table.choice);
  find("steps").append(table.pane);
} else {
  find("steps").remove();
  document.querySelector(".find").remove();
}
navigation();
done();
