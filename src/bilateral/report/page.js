"use strict";

// Tables: a button in every heading sorts by its column; cells that were not measured stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return (cell.dataset.value ?? cell.textContent).trim();
  };
  const sort = (column) => {
    const heading = headings[column];
    const descending = heading.getAttribute("aria-sort") === "ascending"
      || (!heading.hasAttribute("aria-sort") && heading.classList.contains("number"));
    for (const other of headings) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = table.tBodies[0];
    const absent = (value) => value === "" || value === "–";
    const compare = (one, other) => {
      const [a, b] = [valueOf(one, column), valueOf(other, column)];
      if (absent(a) || absent(b)) return absent(a) - absent(b);
      const numbers = [parseFloat(a), parseFloat(b)];
      const order = numbers.some(Number.isNaN) ? a.localeCompare(b) : numbers[0] - numbers[1];
      return descending ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  };
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(column));
    heading.append(button);
  });
}

// The gallery: filters, one picture at a time, arrow keys.
const stored = document.getElementById("examples");
if (stored) {
  const data = JSON.parse(stored.textContent);
  const gallery = document.getElementById("gallery");
  const find = (selector) => gallery.querySelector(selector);
  const thumbs = find(".thumbs");
  const percent = (share) => (100 * share).toFixed(1);
  const className = (example, number) => data.classes[example.run][number] ?? `class ${number}`;
  // A right-to-left name would reverse the order of the numbers that follow it in a sentence.
  const isolated = (name) => `\u2068${name}\u2069`;
  const attackName = (example) => `${example.attack} at ${example.budget}`;
  const filters = {
    run: (example) => data.runs[example.run],
    attack: attackName,
    label: (example) => className(example, example.label),
  };
  const isFooled = ({ before, after, label }) => before[0] === label && after[0] !== label;
  let shown = [];
  let place = 0;

  for (const [name, value] of Object.entries(filters)) {
    const label = find(`[data-filter=${name}]`);
    const collator = new Intl.Collator("en", { numeric: true });
    const values = [...new Set(data.examples.map(value))].sort(collator.compare);
    for (const one of values) {
      const option = document.createElement("option");
      option.value = option.textContent = one;
      label.lastElementChild.append(option);
    }
    label.hidden = values.length < 2;
    label.lastElementChild.addEventListener("change", filter);
  }
  const buttons = data.examples.map((example) => {
    const button = document.createElement("button");
    const picture = document.createElement("img");
    picture.src = data.pictures[example.adversarial];
    picture.alt = `${isolated(className(example, example.label))}, ${attackName(example)}, seen as `
      + isolated(className(example, example.after[0]));
    picture.title = picture.alt;
    button.type = "button";
    button.classList.toggle("fooled", isFooled(example));
    button.append(picture);
    button.addEventListener("click", () => show(shown.indexOf(example)));
    return button;
  });
  for (const button of gallery.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => step(Number(button.dataset.step)));
  }
  document.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const elsewhere = event.target.closest("input, select, textarea, .scroll, pre");
    const box = gallery.getBoundingClientRect();
    const visible = box.bottom > 0 && box.top < innerHeight;
    const modified = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
    if (!by || elsewhere || !visible || modified) return;
    event.preventDefault();
    step(by);
  });

  function filter() {
    const wanted = Object.entries(filters).map(([name, value]) =>
      [value, find(`[data-filter=${name}] select`).value]);
    shown = data.examples.filter((example) =>
      wanted.every(([value, chosen]) => chosen === "" || value(example) === chosen));
    thumbs.replaceChildren(...shown.map((example) => buttons[data.examples.indexOf(example)]));
    show(Math.max(0, shown.findIndex(isFooled)));
  }

  function step(by) {
    if (shown.length) show((place + by + shown.length) % shown.length);
  }

  function show(next) {
    place = next;
    const focused = thumbs.contains(document.activeElement);
    for (const button of buttons) {
      button.removeAttribute("aria-current");
      button.tabIndex = -1; // one stop for the Tab key, not hundreds: arrow keys do the rest
    }
    const example = shown[place];
    find(".example").hidden = !example;
    find("[data-place]").textContent = example ? `${place + 1} of ${shown.length}` : "none";
    if (!example) return;
    const current = buttons[data.examples.indexOf(example)];
    current.setAttribute("aria-current", "true");
    current.tabIndex = 0;
    if (focused) current.focus({ preventScroll: true });
    thumbs.scrollTop = current.offsetTop - thumbs.offsetTop - thumbs.clientHeight / 2;
    const truth = isolated(className(example, example.label));
    const seen = ([number, share]) =>
      `${isolated(className(example, number))} (${percent(share)}\u00a0%)`;
    const captions = {
      clean: `clean: seen as ${seen(example.before)}`,
      change: `perturbation × ${example.factor}`,
      adversarial: `attacked: seen as ${seen(example.after)}`,
    };
    for (const [name, caption] of Object.entries(captions)) {
      const picture = find(`[data-picture=${name}]`);
      picture.src = data.pictures[example[name]];
      picture.alt = `${caption}; true class ${truth}`;
      find(`[data-caption=${name}]`).textContent = caption;
    }
    const outcome = example.before[0] !== example.label ? "misclassified even without an attack"
      : isFooled(example) ? "fooled" : "not fooled";
    const of = data.data[example.run] ? ` of ${isolated(data.data[example.run])}` : "";
    find("[data-about]").textContent = `True class ${truth}; ${outcome}. `
      + `${attackName(example)}, test image ${example.number}${of}, ${isolated(data.runs[example.run])}.`;
    find("[data-bars]").replaceChildren(...example.bars.map((bar) => rowOf(example, bar)));
  }

  function rowOf(example, [number, ...shares]) {
    const row = document.createElement("tr");
    const name = document.createElement("th");
    name.scope = "row";
    name.dir = "auto";
    name.textContent = className(example, number);
    row.classList.toggle("true", number === example.label);
    row.append(name, ...shares.map((share, look) => {
      const cell = document.createElement("td");
      cell.className = `number bar series-${[6, 2, 0, 1][look]}`;
      cell.style.setProperty("--share", share ?? 0);
      cell.textContent = share === null ? "not kept" : percent(share);
      return cell;
    }));
    return row;
  }

  find(".controls").hidden = false;
  filter();
}
