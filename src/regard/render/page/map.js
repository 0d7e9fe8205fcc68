// The heat map of head 1, with the weight under the pointer, or under the cell that the arrow keys move.

const NAMED = 40; // units that can be named along an axis
let map = null;
let frame = { left: 0, top: 0, cell: 1, down: 1 };
let cursor = null;

const cut = (text) => (text.length > 12 ? `${text.slice(0, 11)}…` : text);

const drawMap = () => {
  map = mapOf(state.a, state.merge);
  const canvas = byId("map");
  const pen = canvas.getContext("2d");
  const named = map.exact && Math.max(map.rows, map.columns) <= NAMED;
  const room = Math.min(byId("map-box").clientWidth || 560, 640);
  const type = Math.max(9, Math.min(14, (room - 90) / map.columns - 2));
  pen.font = `${type}px system-ui, sans-serif`;
  const widest = (list) => Math.max(...list.map((unit) => pen.measureText(cut(unit.text)).width)) + 8;
  const left = named ? widest(map.queries) : 4;
  const top = named ? widest(map.keys) : 4;
  const side = room - left - 4;
  const across = Math.min(side / map.columns, 44);
  const down = map.rows === map.columns ? across : Math.min(side / map.rows, across);
  frame = { left, top, cell: across, down };
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [left + across * map.columns + 4, top + down * map.rows + 4];
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint(pen, named, type);
};

const paint = (pen, named, type) => {
  const { left, top, cell, down } = frame;
  const highest = Math.max(...rowsOf(map).map((values) => Math.max(...values)), 1e-9);
  const level = (i) => Math.round((255 * map.values[i]) / highest);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(bitmap(map.rows, map.columns, level, ramp()), left, top, cell * map.columns, down * map.rows);
  pen.strokeStyle = css("--rule");
  pen.strokeRect(left, top, cell * map.columns, down * map.rows);
  if (named) nameAxes(pen, type);
  const first = map.queries.findIndex((unit) => unit.written); // an orange line where the model begins to write
  if (first > 0) {
    pen.fillStyle = css("--b");
    pen.fillRect(left, top + first * down - 1, cell * map.columns, 2);
  }
  const active = queryUnits()[state.active];
  const mine = map.queries.findIndex((query) => active && query.stop > active.start && query.start < active.stop);
  if (mine >= 0) outline(pen, left, top + mine * down, cell * map.columns, Math.max(down, 3), css("--chosen-edge"));
  if (cursor) outline(pen, left + cursor.column * cell, top + cursor.row * down, Math.max(cell, 4), Math.max(down, 4), css("--b"));
  const bins = meta.layers[state.a.layer].bins;
  const stands = map.exact ? "Each cell is one weight" : `Each cell is ${bins[0]} × ${bins[1]} tokens, their largest weight`;
  byId("map-hint").textContent = `Rows look at columns. ${stands}; the strongest is ${highest.toFixed(2)}. Arrow keys move the cell.`;
  byId("map").setAttribute("aria-label", `Heat map of ${headName(state.a)}, ${map.rows} rows by ${map.columns} columns`);
};

const rowsOf = ({ rows, columns, values }) => Array.from({ length: rows }, (_, at) => values.subarray(at * columns, (at + 1) * columns));

const outline = (pen, x, y, width, height, colour) => {
  pen.lineWidth = 2;
  pen.strokeStyle = colour;
  pen.strokeRect(x, y, width, height);
  pen.lineWidth = 1;
};

const nameAxes = (pen, type) => {
  const { left, top, cell, down } = frame;
  pen.fillStyle = css("--ink");
  pen.font = `${Math.min(type, down)}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  map.queries.forEach((unit, at) => pen.fillText(cut(unit.text), left - 5, top + (at + 0.5) * down));
  pen.textAlign = "left";
  map.keys.forEach((unit, at) => {
    pen.save();
    pen.translate(left + (at + 0.5) * cell, top - 5);
    pen.rotate(-Math.PI / 2);
    pen.fillText(cut(unit.text), 0, 0);
    pen.restore();
  });
};

const readCell = () => {
  const { row: at, column } = cursor;
  const weight = map.values[at * map.columns + column];
  const weighs = map.exact ? weight.toFixed(4) : `at most about ${weight.toFixed(2)}`;
  Object.assign(byId("cell").dataset, { query: at, key: column, weight: weight.toFixed(4) });
  byId("cell").replaceChildren(apart(map.queries[at].text), " → ", apart(map.keys[column].text), `: ${weighs}`);
};

const moveCursor = (at, column) => {
  const within = (value, count) => Math.max(0, Math.min(count - 1, value));
  cursor = { row: within(at, map.rows), column: within(column, map.columns) };
  drawMap();
  readCell();
};

const cellAt = (event) => {
  const box = byId("map").getBoundingClientRect();
  const at = Math.floor((event.clientY - box.top - frame.top) / frame.down);
  const column = Math.floor((event.clientX - box.left - frame.left) / frame.cell);
  return at >= 0 && at < map.rows && column >= 0 && column < map.columns ? { at, column } : null;
};

const listenToMap = () => {
  const canvas = byId("map");
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (cell && (!cursor || cursor.row !== cell.at || cursor.column !== cell.column)) moveCursor(cell.at, cell.column);
  });
  canvas.addEventListener("pointerleave", () => { cursor = null; drawMap(); byId("cell").textContent = ""; });
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) pin(units(meta.layers[state.a.layer].queries, state.merge).of[map.queries[cell.at].start]);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const from = cursor || { row: 0, column: 0 };
    if (cursor) moveCursor(from.row + step[0], from.column + step[1]);
    else moveCursor(0, 0);
  });
};
