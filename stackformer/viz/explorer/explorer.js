"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const T = data.tokens.length, ROW = 22, ROWS = 13;
  const byId = (id) => document.getElementById(id);
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const symbols = data.tokens.map((token, i) => (i === 0 ? "⊥" : token));
  const state = { position: 0, layer: data.panels.length === 1 ? 0 : -1, timer: 0 };
  let palette = new Palette(), measured = false;

  /* The position under the mouse or finger. */
  function at(client, canvas, edge, size) {
    const box = canvas.getBoundingClientRect();
    return Math.floor(((client - box[edge]) / box[size]) * T);
  }

  function argmax(values) {
    let best = 0;
    for (let k = 1; k < values.length; k++) if (values[k] > values[best]) best = k;
    return best;
  }

  function meter(name, color) {
    const node = element("div", "meter");
    const label = element("span", "name", name), track = element("span", "track");
    const fill = element("span", "fill"), value = element("span", "value");
    if (color) { label.style.color = color; fill.style.background = color; }
    track.append(fill);
    node.append(label, track, value);
    return {
      node,
      set(p, text) {
        if (text !== undefined) setText(label, text);
        fill.style.transform = `scaleX(${p})`;
        setText(value, percent(p));
      },
    };
  }

  /* One token of the string, with the model's answer below it where there is one. */
  const tape = data.tokens.map((token, i) => {
    const node = element("div", "token");
    node.setAttribute("role", "listitem");
    node.dataset.position = i;
    const answer = element("span", "answer");
    node.append(element("span", "symbol", symbols[i]), element("span", "index", i === 0 ? "bottom" : String(i)), answer);
    if (!data.predictions.some(Boolean)) answer.remove();
    node.addEventListener("click", () => go(i));
    byId("tape").append(node);
    return { node, answer };
  });

  const cards = data.panels.map((panel, index) => {
    const stack = new SoftStack(panel.actions, data.action_names.length);
    const node = element("section", "layer card");
    node.dataset.layer = index;
    node.setAttribute("aria-label", panel.name);
    const head = element("div", "layer-head"), badge = element("span", "badge");
    head.append(element("h2", "", panel.name), badge);
    const meters = data.action_names.map((name, a) =>
      meter(name, `var(--${["push", "pop", "noop"][a < 3 ? a : 1]})`));
    const top = element("p", "top-line");
    const height = element("span", "side"), pile = element("ol", "pile");
    pile.setAttribute("aria-label", "Most probable element at each depth, top first");
    node.append(head, ...meters.map((one) => one.node), top);
    /* Every picture is a row of two columns, so that all share the axis of positions. */
    const picture = (label, beside, className, caption) => {
      node.append(element("p", "caption", caption));
      const row = element("div", `aligned ${className}`), plot = element("div", "plot");
      const canvas = element("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", label);
      plot.append(canvas, element("div", "ahead"), element("div", "mark"));
      row.append(beside, plot);
      node.append(row);
      return canvas;
    };
    const side = (text) => element("span", "side", text);
    const attends = picture("What the top of the stack attends to", height, "top", "Top of the stack: which position it holds");
    const heat = picture("Soft stack, depth by position", pile, "stack", "The stack: a row for each depth, a column for each position");
    const timeline = picture("Action probabilities along the string", side("push, pop, no-op"), "timeline", "Actions along the string");
    const map = picture("Stack attention of all positions", side("positions, downwards"), "map", "Attention map: what the top holds after each position");
    timeline.parentNode.addEventListener("click", (event) => go(at(event.clientX, timeline, "left", "width")));
    map.parentNode.addEventListener("click", (event) => go(at(event.clientY, map, "top", "height")));
    byId("cards").append(node);
    const scroll = pile.parentNode;
    scroll.addEventListener("scroll", () => {
      cards[index].scrolled = scroll.scrollTop;
      renderPile(cards[index]);
    }, { passive: true });
    return { panel, stack, node, badge, meters, top, height, pile, scrolled: 0, rows: [], attends, heat, timeline, map, width: 0, drawn: false };
  });

  function renderCard(card) {
    const i = state.position, actions = card.stack.actionsAt(i), best = argmax(actions);
    card.meters.forEach((one, a) => {
      one.set(i === 0 ? 0 : actions[a]);
      one.node.classList.toggle("unused", i === 0);
    });
    setText(card.badge, i === 0 ? "start" : `${data.action_names[best]} ${percent(actions[best])}`);
    card.badge.style.color = i === 0 ? "" : palette.action(best);
    const row = card.stack.top(i), first = argmax(row);
    const others = Array.from(row.keys()).filter((n) => row[n] >= 0.005 && n !== first)
      .sort((a, b) => row[b] - row[a]).slice(0, 2);
    card.top.replaceChildren("Top attends to ", place(data.tokens, first, "b"), ` ${percent(row[first])}`,
      ...others.flatMap((n) => [", ", place(data.tokens, n), ` ${percent(row[n])}`]));
    card.node.dataset.top = first;
    card.node.dataset.action = i === 0 ? "" : data.action_names[best];
    const rows = card.stack.rows(i);
    card.rows = rows;
    setText(card.height, `height ${rows.reduce((sum, r) => sum + 1 - r[0], 0).toFixed(1)}`);
    renderPile(card);
    drawTop(card.attends, card.width, row, i, symbols, palette);
    drawHeat(card.heat, rows, palette, ROW * rows.length);
    if (!card.drawn) renderOnce(card);
    for (const [canvas, edge] of [[card.timeline, "left"], [card.map, "top"]]) {
      canvas.nextSibling.style[edge] = `${(100 * (i + 1)) / T}%`;
      canvas.nextSibling.nextSibling.style[edge] = `${(100 * i) / T}%`;
    }
    const summary = `top ${placeText(data.tokens, first)} ${percent(row[first])}`;
    card.attends.setAttribute("aria-label", `What the top of the stack attends to: ${summary}`);
    return `${card.panel.name}: ${card.badge.textContent}, ${summary}.`;
  }

  /* Pictures that do not depend on the position; the marks on them are style alone. */
  function renderOnce(card) {
    card.drawn = true;
    drawTimeline(card.timeline, card.width, card.stack, palette);
    const rows = Array.from({ length: T }, (_, n) => card.stack.top(n));
    card.timeline.nextSibling.nextSibling.style.width = `${100 / T}%`;
    card.map.nextSibling.nextSibling.style.height = `${100 / T}%`;
    drawHeat(card.map, rows, palette, Math.round(Math.min(card.width, 320, ROW * T)));
  }

  /* Only the rows in sight exist: a deep stack costs no more than a shallow one. */
  function renderPile(card) {
    const { pile, rows } = card, all = rows.length;
    const above = Math.max(0, Math.min(Math.floor(card.scrolled / ROW), all - ROWS));
    const count = Math.min(all, ROWS);
    pile.style.height = `${all * ROW}px`;
    pile.style.paddingTop = `${above * ROW}px`;
    while (pile.children.length > count) pile.lastChild.remove();
    while (pile.children.length < count) {
      const item = element("li");
      item.append(element("span"), element("span", "share"));
      pile.append(item);
    }
    for (let k = 0; k < count; k++) {
      const row = rows[above + k], best = argmax(row), item = pile.children[k];
      if (item.dataset.place !== String(best)) {
        item.dataset.place = best;
        item.firstChild.replaceWith(place(data.tokens, best));
      }
      setText(item.lastChild, percent(row[best]));
      item.classList.toggle("first", above + k === 0);
      item.classList.toggle("bottom", above + k === all - 1);
    }
  }

  const longest = Math.max(3, ...data.predictions.filter(Boolean).flatMap((one) => one.top.map(([name]) => name.length)));
  byId("prediction").style.setProperty("--name", `${Math.min(longest, 14)}ch`);

  function renderPrediction() {
    const body = byId("prediction-body"), prediction = data.predictions[state.position];
    if (!prediction) {
      body.replaceChildren(element("span", "none", "None at this position: it belongs to the input."));
      return "";
    }
    const [symbol, p] = prediction.top[0];
    const winner = element("span", "winner", symbol);
    winner.append(element("small", "", percent(p)));
    const classes = element("div", "classes");
    for (const [name, share] of prediction.top) {
      const one = meter(name);
      one.set(share);
      classes.append(one.node);
    }
    const parts = [winner, classes];
    let said = "";
    if (prediction.target !== null) {
      const right = prediction.target === symbol;
      said = right ? "right" : `should be ${prediction.target}`;
      parts.splice(1, 0, element("span", `verdict ${right ? "right" : "wrong"}`, right ? "✓ right" : `✗ ${said}`));
    }
    body.replaceChildren(...parts);
    return `Prediction ${symbol} ${percent(p)}${said ? `, ${said}` : ""}.`;
  }

  function renderTape() {
    const shade = state.layer < 0 ? null : cards[state.layer].stack.top(state.position);
    tape.forEach(({ node, answer }, n) => {
      node.classList.toggle("ahead", n > state.position);
      node.classList.toggle("current", n === state.position);
      node.style.backgroundColor = shade && shade[n] > 0.01 ? palette.css(shade[n]) : "";
      node.classList.toggle("dark-ground", Boolean(shade) && shade[n] > 0.5);
      const prediction = n <= state.position && data.predictions[n];
      setText(answer, prediction ? prediction.top[0][0] : "");
      const judged = prediction && prediction.target !== null;
      answer.classList.toggle("right", judged && prediction.target === prediction.top[0][0]);
      answer.classList.toggle("wrong", judged && prediction.target !== prediction.top[0][0]);
    });
    const strip = byId("tape"), current = tape[state.position].node;
    const left = current.offsetLeft - strip.offsetLeft - (strip.clientWidth - current.offsetWidth) / 2;
    strip.scrollTo({ left, behavior: state.timer || calm.matches ? "auto" : "smooth" });
  }

  function render() {
    const i = state.position, slider = byId("slider");
    slider.value = i;
    const place = i === 0 ? "bottom of the stack" : `token ${data.tokens[i]}`;
    slider.setAttribute("aria-valuetext", `position ${i} of ${T - 1}, ${place}`);
    setText(byId("where"), `${i} / ${T - 1}`);
    cards.forEach((card, k) => { card.node.hidden = state.layer >= 0 && k !== state.layer; });
    byId("cards").classList.toggle("single", state.layer >= 0);
    const shown = cards.filter((card) => !card.node.hidden);
    /* Read all sizes before anything is written: one layout for all the cards. */
    if (!measured) for (const card of shown) [card.width, card.drawn] = [card.attends.clientWidth, false];
    measured = true;
    const said = shown.map(renderCard);
    const prediction = renderPrediction();
    renderTape();
    if (!state.timer) setText(byId("status"), `Position ${i}, ${place}. ${said.join(" ")} ${prediction}`);
    document.body.dataset.position = i;
  }

  function go(position) {
    state.position = Math.min(T - 1, Math.max(0, position));
    render();
  }

  function pause() {
    clearTimeout(state.timer);
    state.timer = 0;
    document.body.classList.remove("playing");
    byId("play").setAttribute("aria-label", "Play");
  }

  function tick() {
    if (state.position >= T - 1) { pause(); render(); return; }
    state.timer = setTimeout(tick, 1000 / Number(byId("speed").value));
    go(state.position + 1);
  }

  function toggle() {
    if (state.timer) { pause(); render(); return; }
    if (state.position >= T - 1) state.position = 0;
    document.body.classList.add("playing");
    byId("play").setAttribute("aria-label", "Pause");
    tick();
  }

  function show(layer) {
    state.layer = layer < cards.length ? layer : state.layer;
    measured = false;
    for (const button of byId("layers").children) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.show) === state.layer));
    }
    render();
  }

  const jump = (target) => { pause(); go(target()); };
  const keys = {
    ArrowRight: () => jump(() => state.position + 1), ArrowLeft: () => jump(() => state.position - 1),
    Home: () => jump(() => 0), End: () => jump(() => T - 1), " ": toggle,
  };
  byId("first").addEventListener("click", keys.Home);
  byId("back").addEventListener("click", keys.ArrowLeft);
  byId("play").addEventListener("click", toggle);
  byId("forward").addEventListener("click", keys.ArrowRight);
  byId("last").addEventListener("click", keys.End);
  byId("slider").max = T - 1;
  byId("slider").addEventListener("input", (event) => jump(() => Number(event.target.value)));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    if (event.key === " " && event.target.tagName === "BUTTON") return;
    if (/^[0-9]$/.test(event.key) && cards.length > 1) show(Number(event.key) - 1);
    else if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  if (cards.length > 1) {
    ["All layers", ...data.panels.map((panel) => panel.name)].forEach((name, k) => {
      const button = element("button", "", name);
      button.type = "button";
      button.dataset.show = k - 1;
      button.addEventListener("click", () => show(k - 1));
      byId("layers").append(button);
    });
  }
  byId("layers").hidden = cards.length === 1;
  byId("prediction").hidden = !data.predictions.some(Boolean);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    palette = new Palette();
    measured = false;
    render();
  });
  /* What the short symbols stand for, of those that are in the string. */
  const glossary = {
    M: "M is a mask: there the model writes its answer.", "|": "| separates input and answer.", P: "P is pop.",
  };
  const words = ["⊥ is the bottom of the stack.", ...Object.keys(glossary).filter((one) => data.tokens.includes(one)).map((one) => glossary[one])];
  setText(byId("glossary"), words.join(" "));
  window.addEventListener("resize", () => { measured = false; render(); });
  window.stackExplorer = { go, show, state, stacks: cards.map((card) => card.stack) };

  /* Opens where something is taken from a stack: in the layer where it happens most. */
  const taken = cards.map((card) => {
    const tops = Array.from({ length: T }, (_, n) => argmax(card.stack.top(n)));
    return tops.flatMap((top, n) => (n && top < tops[n - 1] ? [n] : []));
  });
  const most = argmax(taken.map((places) => places.length));
  if (taken[most].length) {
    state.position = taken[most][0];
    show(most);
  } else {
    const answers = data.predictions.findIndex(Boolean);
    state.position = answers < 0 ? T - 1 : answers;
    show(state.layer);
  }
})();
