for (const place of document.querySelectorAll(".attention")) {
  const sentences = JSON.parse(document.getElementById(place.dataset.weights).textContent);
  const choice = {};
  for (const one of place.querySelectorAll("select")) choice[one.dataset.choice] = one;
  const status = place.querySelector(".status");
  let cells = [];

  const make = (tag, text) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const offer = (select, names, selected) => {
    select.replaceChildren(...names.map((name, number) => {
      const option = make("option", name);
      option.value = number;
      return option;
    }));
    select.value = Math.min(selected, names.length - 1);
  };
  const chosenMap = () => sentences[choice.sentence.value].maps[choice.kind.value];
  const offerLayers = () => {
    const selected = choice.layer.value === "" ? sentences[0].layer : Number(choice.layer.value);
    offer(choice.layer, chosenMap().weights.map((_, number) => String(number + 1)), selected);
    const heads = chosenMap().weights[0].map((_, number) => String(number + 1));
    offer(choice.head, ["mean of all", ...heads], Number(choice.head.value || 0));
  };
  const weightsOf = (heads, head) => {
    if (head > 0) return heads[head - 1];
    return heads[0].map((_, i) => heads.reduce((sum, weights) => sum + weights[i], 0) / heads.length);
  };

  const draw = () => {
    const sentence = sentences[choice.sentence.value];
    const {queries, keys, weights} = chosenMap();
    const values = weightsOf(weights[choice.layer.value], Number(choice.head.value));
    const most = Math.max(1, ...values);
    const row = make("tr");
    row.append(make("td"), ...keys.map((key) => {
      const head = make("th", key);
      head.scope = "col";
      return head;
    }));
    row.firstChild.className = "corner";
    const top = make("thead");
    top.append(row);
    const body = make("tbody");
    cells = queries.map((query, i) => {
      const line = make("tr"), head = make("th", query);
      head.scope = "row";
      const ofLine = keys.map((key, j) => {
        const cell = make("td"), weight = values[i * keys.length + j];
        cell.style.setProperty("--shade", (weight / most).toFixed(3));
        cell.tabIndex = -1;
        cell.setAttribute("aria-label", `${query} attends to ${key}: ${(weight / 100).toFixed(2)}`);
        cell.dataset.row = i;
        cell.dataset.column = j;
        return cell;
      });
      line.append(head, ...ofLine);
      body.append(line);
      return ofLine;
    });
    const table = make("table"), name = choice.kind.selectedOptions[0].textContent;
    table.setAttribute("aria-label", `${name}, layer ${Number(choice.layer.value) + 1}`);
    table.append(top, body);
    cells[0][0].tabIndex = 0;
    place.querySelector(".map").replaceChildren(table);
    place.querySelector(".texts").textContent = `${sentence.source} \u2192 ${sentence.translation}`;
    status.textContent = `Each row shows the attention weights of one token; the darkest cell is ${(most / 100).toFixed(2)}. ` +
      "Point at a cell, or use Tab and the arrow keys, to read its weight.";
  };

  const describe = (cell) => {
    if (!cell || cell.dataset.row === undefined) return;
    status.textContent = cell.getAttribute("aria-label");
    for (const head of place.querySelectorAll("th.on")) head.classList.remove("on");
    cell.parentNode.firstChild.classList.add("on");
    place.querySelectorAll("thead th")[cell.dataset.column].classList.add("on");
  };
  const map = place.querySelector(".map");
  map.addEventListener("pointerover", (event) => describe(event.target.closest("td")));
  map.addEventListener("focusin", (event) => describe(event.target.closest("td")));
  map.addEventListener("keydown", (event) => {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    const from = event.target.closest("td");
    if (!step || !from) return;
    const to = (cells[Number(from.dataset.row) + step[0]] || [])[Number(from.dataset.column) + step[1]];
    event.preventDefault();
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
  choice.sentence.addEventListener("change", () => { offerLayers(); draw(); });
  choice.kind.addEventListener("change", () => { offerLayers(); draw(); });
  choice.layer.addEventListener("change", draw);
  choice.head.addEventListener("change", draw);
  offerLayers();
  draw();
}
