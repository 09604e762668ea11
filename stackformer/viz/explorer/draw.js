"use strict";

/* Drawing and small DOM helpers; nothing here knows the state of the replay. */

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function percent(p) {
  return p > 0.9995 ? "100%" : `${(100 * p).toFixed(1)}%`;
}

/* A position as text for reading aloud, or as nodes: its symbol and a small index. */
function placeText(tokens, n) {
  return n === 0 ? "bottom" : `${tokens[n]} at ${n}`;
}

function place(tokens, n, tag = "span") {
  const node = element(tag, "place", n === 0 ? "bottom" : tokens[n]);
  if (n > 0) node.append(element("sub", "", String(n)));
  return node;
}

function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/* 256 colours between the stops of a comma-separated list of #rrggbb. */
function ramp(stops) {
  const colors = stops.split(",").map((hex) =>
    [1, 3, 5].map((k) => parseInt(hex.trim().slice(k, k + 2), 16)));
  const table = new Uint8ClampedArray(256 * 3);
  for (let v = 0; v < 256; v++) {
    const place = (v / 255) * (colors.length - 1);
    const k = Math.min(Math.floor(place), colors.length - 2);
    for (let c = 0; c < 3; c++) {
      table[3 * v + c] = colors[k][c] + (place - k) * (colors[k + 1][c] - colors[k][c]);
    }
  }
  return table;
}

class Palette {
  constructor() {
    this.heat = ramp(cssColor("--heat"));
    for (const name of ["ink", "muted", "line", "lane", "cursor", "accent", "card"]) {
      this[name] = cssColor(`--${name}`);
    }
    this.actions = ["--push", "--pop", "--noop"].map(cssColor);
  }

  action(index) {
    return this.actions[index < 3 ? index : 1];
  }

  css(value) {
    const v = 3 * Math.round(255 * Math.min(1, Math.max(0, value)));
    return `rgb(${this.heat[v]},${this.heat[v + 1]},${this.heat[v + 2]})`;
  }
}

/* A canvas `width` by `height` CSS pixels, sharp on every screen. */
function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/* Left edge and width of column n of T, on whole pixels so that no seams show. */
function column(n, T, width) {
  const left = Math.round((n * width) / T), right = Math.round(((n + 1) * width) / T);
  const gap = width / T > 5 ? 1 : 0;
  return [left, Math.max(1, right - left - gap)];
}

/* Rows of values 0..1, one pixel for each; the style sheet stretches the canvas. */
function drawHeat(canvas, rows, palette, height) {
  const columns = rows[0].length, context = canvas.getContext("2d");
  if (canvas.width !== columns || canvas.height !== rows.length) {
    canvas.width = columns;
    canvas.height = rows.length;
  }
  canvas.style.height = `${height}px`;
  const pixels = context.createImageData(columns, rows.length), heat = palette.heat;
  for (let r = 0, at = 0; r < rows.length; r++) {
    for (let n = 0; n < columns; n++, at += 4) {
      const v = 3 * Math.round(255 * Math.min(1, Math.max(0, rows[r][n])));
      pixels.data[at] = heat[v];
      pixels.data[at + 1] = heat[v + 1];
      pixels.data[at + 2] = heat[v + 2];
      pixels.data[at + 3] = 255;
    }
  }
  context.putImageData(pixels, 0, 0);
}

/* Bars of what the top attends to; the symbols of the positions stand below. */
function drawTop(canvas, width, top, position, symbols, palette) {
  const plot = 44, context = prepare(canvas, width, 62), T = top.length, cell = width / T;
  context.fillStyle = palette.lane;
  context.fillRect(0, 0, width, plot);
  context.fillStyle = palette.accent;
  for (let n = 0; n < T; n++) {
    const [left, wide] = column(n, T, width), bar = top[n] * (plot - 2);
    if (bar > 0.2) context.fillRect(left, plot - bar, wide, bar);
  }
  const [left, wide] = column(position, T, width);
  context.fillStyle = palette.cursor;
  context.fillRect(left, plot, Math.max(wide, 3), 2);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = '12px ui-monospace, "DejaVu Sans Mono", monospace';
  const widest = symbols.reduce((most, s) => Math.max(most, context.measureText(s).width), 0);
  if (widest + 1 > cell) {
    numberTicks(context, T, cell, plot + 11, palette);
    return;
  }
  for (let n = 0; n < T; n++) {
    context.fillStyle = n === position ? palette.cursor : palette.muted;
    context.fillText(symbols[n], (n + 0.5) * cell, plot + 11);
  }
}

function numberTicks(context, T, cell, y, palette) {
  context.font = "10px system-ui, sans-serif";
  context.fillStyle = palette.muted;
  const every = [1, 5, 10, 20, 50, 100, 200].find((step) => step * cell >= 26) || 500;
  for (let n = 0; n < T; n += every) {
    context.textAlign = n === 0 ? "left" : "center";
    context.fillText(String(n), n === 0 ? 0 : (n + 0.5) * cell, y);
  }
}

/* Action probabilities along the string as stacked columns. */
function drawTimeline(canvas, width, stack, palette) {
  const height = 30, context = prepare(canvas, width, height), T = stack.length;
  for (let i = 1; i < T; i++) {
    const row = stack.actionsAt(i), [left, wide] = column(i, T, width);
    for (let a = 0, y = height; a < row.length; a++) {
      context.fillStyle = palette.action(a);
      context.fillRect(left, y - row[a] * height, wide, row[a] * height);
      y -= row[a] * height;
    }
  }
}
