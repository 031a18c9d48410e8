"use strict";
(() => {
  const number = (cell) => {
    const value = parseFloat(cell.dataset.v ?? cell.textContent.replace(/[^0-9.eE+-]/g, ""));
    return cell.dataset.v === "inf" ? Infinity : Number.isNaN(value) ? -Infinity : value;
  };
  const text = new Intl.Collator("en", { numeric: true });

  for (const table of document.querySelectorAll("table.data")) {
    const body = table.tBodies[0];
    const controls = document.querySelector(`.controls[data-for="${table.id}"]`);
    const told = controls.querySelector(".told");
    const rows = [...body.rows];
    let shown = rows.length;

    const say = (words) => {
      told.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows${words}`;
    };

    const sort = (head, column) => {
      const numeric = head.dataset.sort === "n";
      const was = head.getAttribute("aria-sort");
      const up = was === null ? !numeric : was === "descending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keys = new Map(rows.map((row) => [row, numeric ? number(row.cells[column]) : row.cells[column].textContent.trim()]));
      const order = numeric ? (a, b) => (keys.get(a) === keys.get(b) ? 0 : keys.get(a) - keys.get(b)) : (a, b) => text.compare(keys.get(a), keys.get(b));
      rows.sort((a, b) => (up ? order(a, b) : order(b, a)));
      body.append(...rows);
      say(`, sorted by ${head.textContent.trim()}, ${up ? "ascending" : "descending"}`);
    };

    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!head.dataset.sort) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(head, column));
      head.append(button);
    });

    const input = controls.querySelector("input");
    const select = controls.querySelector("select");
    let lower;
    const filter = () => {
      lower ??= new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const outcome = select ? select.value : "";
      shown = 0;
      for (const row of rows) {
        const hit = (!outcome || row.dataset.outcome === outcome) && words.every((word) => lower.get(row).includes(word));
        row.hidden = !hit;
        if (hit) shown += 1;
      }
      say("");
    };
    input.addEventListener("input", filter);
    select?.addEventListener("change", filter);
    if (rows.length > 1) {
      controls.hidden = false;
      say("");
    }
  }

  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let one = target.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
    target.scrollIntoView();
    if (target.tabIndex >= -1 && target.hasAttribute("tabindex")) target.focus();
  };
  addEventListener("hashchange", reveal);
  reveal();

  const baseline = document.getElementById("baseline");
  if (baseline && baseline.options.length > 1) {
    baseline.closest("[hidden]").hidden = false;
    const show = () => {
      for (const one of document.querySelectorAll(".baseline")) one.hidden = one.dataset.night !== baseline.value;
    };
    baseline.addEventListener("change", show);
    show();
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
})();
