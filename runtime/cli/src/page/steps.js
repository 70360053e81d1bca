// The table of steps.

const limits = { memory: "memory", arithmetic: "math", launch: "launch" };
for (const row of rows) row.limit = limits[row.bound] ?? "";

const rooflineText = row => `${row.beyond_roof ? "≥ " : ""}${(100 * Math.min(1, row.roofline)).toFixed(0)} %`;

const columnsOfSteps = () => {
  const has = key => rows.some(row => row[key] !== null && row[key] !== undefined && row[key] !== "");
  const number = (name, key, show, about) => has(key) && {
    name, about, id: key.split("_")[0], kind: "number", key: row => row[key],
    show: row => row[key] === null || row[key] === undefined ? "–" : show(row[key], row),
  };
  const text = (name, key, kind, about, most = 60) => has(key) && { name, about, id: key, kind, key: row => row[key], show: row => tail(row[key] ?? "", most) };
  const shapeOf = text => text.replace(/\b[a-z]+\d*\[/g, "[");
  return [
    { name: "#", id: "place", about: "The step's place in the program", kind: "number place", key: row => row.step, show: row => `${row.step}` },
    { name: "Family", id: "family", kind: "family", key: row => row.family, show: row => [swatch(), row.family] },
    text("Module", "module", "long", "The module of PyTorch that the step is of, by the names of its nodes", 29),
    text("Operators", "operators", "long", "The operators that the step computes, in their order"),
    text("Types", "types", "types", "Elements that it reads and writes"),
    { name: "Shapes", id: "shapes", about: "What the step writes", kind: "long shape", key: row => row.writes, show: row => shapeOf(row.writes) },
    number(estimated ? "Estimate" : "Time", "time_us", micros, estimated
      ? "The least time that the target's peak rates allow, and a launch" : "The step alone, by itself"),
    has("share") && { name: "Share", id: "share", about: "Share of the time of all steps", kind: "number bar-cell", key: row => row.share,
      show: row => share(row.share / most("share"), row.share === null ? "–" : percent(row.share), "of-all") },
    estimated && number("Traffic", "bytes", bytes, "Bytes that it reads and writes at least"),
    estimated && number("Work", "flops", value => value ? `${count(value)}FLOP` : "–", "Floating-point operations, a multiply-add being two"),
    estimated && text("Limit", "limit", "types", "What takes most of the estimate: traffic with memory, arithmetic, or the launch"),
    number("GB/s", "gbytes_per_s", digits, "Bytes that it reads and writes at least, a second"),
    number("TFLOP/s", "tflops_per_s", digits, "Floating-point operations a second, a multiply-add being two"),
    has("roofline") && { name: "Roofline", id: "roofline", about: "Least time that the machine's memory and arithmetic allow, over the time taken", kind: "number bar-cell", key: row => row.roofline,
      show: row => share(row.roofline, [rooflineText(row), el("span", { class: "quiet" }, row.bound === "arithmetic" ? " math" : " mem")], `by-${row.bound}`) },
    number("Library", "library_us", micros, estimated ? "The same estimate for library execution of the same operators" : "Library execution of the same operators"),
    has("library_us") && { name: "Ratio", id: "ratio", about: "Library's time over this step's: above 1 this step is faster", kind: "number", key: row => row.library_us / row.time_us || null,
      show: row => row.library_us ? ratio(row.library_us / row.time_us) : "–" },
    { name: "Runs on", id: "where", about: "Where the step runs, and what falls back to the CPU", kind: "types", key: row => row.falls_back ? `0 ${row.runs_on}` : row.runs_on,
      show: row => row.falls_back ? el("span", { class: "pill bad" }, row.runs_on, " ", el("span", { class: "why" }, "falls back")) : row.runs_on },
  ].filter(Boolean);
};
const most = key => Math.max(...rows.map(row => row[key] ?? 0), 1e-12);
const ratio = value => el("span", { class: `pill ${value >= 1.03 ? "good" : value <= 0.97 ? "bad" : ""}` }, times(value));

const stepsTable = () => {
  const table = sortedTable({
    columns: columnsOfSteps(), rows, label: "steps",
    words: row => texts[row.step],
    decorate: (line, row) => {
      line.classList.add(family(row.family));
      line.dataset.row = row.step;
      part(line, [row.step]);
      tip(line, () => [row.name, row.falls_back && `falls back to the CPU: ${row.falls_back}`]);
    },
  });
  const fallen = rows.filter(row => row.falls_back).length;
  filled(find("steps-title"), {}, [el("span", { class: "quiet" }, ` ${rows.length}`), estimated && el("span", { class: "badge" }, "estimates")]);
  find("steps-tools").append(
    ...[fallen > 0 && el("span", { class: "bad" }, `${counted(fallen, "step", "steps")} on the CPU`)].filter(Boolean),
    table.choice,
    button("Save as CSV", null, () => save("steps.csv", data.csv, "text/csv"), { id: "csv" }));
  find("steps").append(table.pane);
  // Enter, in what is searched for, leads to the first step that is found.
  find("search").addEventListener("keydown", event => {
    const [first] = table.order();
    if (event.key === "Enter" && first !== undefined) pin({ steps: [rows[first].step] });
  });
  walkable(table.pane, () => table.order().map(i => [rows[i].step]));
};
