// Plots of rows over time: lines, marks where frames are missing, bands where answers are not valid.

import {label, shown, surface, theme} from './surface.js';

const LEFT = 38, RIGHT = 8, TOP = 6, BOTTOM = 18;
// Rows further apart than this are not joined.
const GAP_S = 0.6;

// What is drawn where. `span`: the least range of values; `scale`: what is shown for 1.
export const PLOTS = [
  {id: 'speed', name: 'Speed', unit: 'm/s', digits: 1, span: 4, lines: [
    ['carSpeed', 'car', 'car', 2.6], ['seenSpeed', 'seen', 'seen', 1.2], ['planSpeed', 'plan', 'plan', 1.6]]},
  {id: 'curvature', name: 'Curvature', unit: '1/km', digits: 2, span: 2, scale: 1000, isCentred: true, lines: [
    ['seenCurvature', 'seen', 'seen', 1.2], ['curvature', 'wanted', 'plan', 1.6]]},
  {id: 'acceleration', name: 'Acceleration', unit: 'm/s²', digits: 2, span: 1, isCentred: true, lines: [
    ['carAcceleration', 'car', 'car', 2.2], ['acceleration', 'wanted', 'plan', 1.6]]},
  {id: 'execution', name: 'Time of the model', unit: 'ms', digits: 1, span: 20, floor: 0, level: 50, most: 200, lines: [
    ['execution', 'run', 'plan', 1.4]]},
];

// Draw rows from `first` to `last` seconds. `column`: name -> number; `cursor`: a time, or null; `others`: rows of a
// second log; `marked`: times at which the two differ.
export function drawPlot(canvas, plot, {rows, column, first, last, cursor, others = [], marked = []}) {
  const area = surface(canvas);
  if (area === null) return;
  const {context, width, height} = area;
  const colours = theme();
  const lines = plot.lines.map(([name]) => column[name]);
  const [low, high] = range(others.length ? rows.concat(others) : rows, lines, plot);
  // What lies before the window holds into it, and is drawn from its edge on.
  const u = time => LEFT + Math.max(0, (time - first) / (last - first)) * (width - LEFT - RIGHT);
  const v = value => height - BOTTOM - (Math.min(value, high) - low) / (high - low) * (height - TOP - BOTTOM);
  axes(context, colours, {width, height, low, high, first, last, u, v, cursor, plot});
  marks(context, colours, rows, column, u, height);
  const end = Math.min(last, cursor ?? last);
  plot.lines.forEach(([name, , colour, thick]) => line(context, rows, column[name], plot, {
    u, v, colour: colours[colour], thick, end}));
  context.setLineDash([5, 4]);
  plot.lines.forEach(([name]) => line(context, others, column[name], plot, {u, v, colour: colours.other, thick: 1.6, end}));
  context.setLineDash([]);
  context.fillStyle = colours.differ;
  for (const time of marked) if (time >= first) context.fillRect(u(time) - 1, 0, 2, TOP);
  if (cursor !== null) {
    context.strokeStyle = colours.accent;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(u(cursor), TOP);
    context.lineTo(u(cursor), height - BOTTOM);
    context.stroke();
  }
}

// Say what the newest values are; `row` is the one that is shown.
export function labelPlot(canvas, plot, row, column) {
  const values = plot.lines.map(([name, what]) => {
    const value = row ? row[column[name]] : null;
    return `${what} ${value === null ? 'unknown' : shown(value * (plot.scale ?? 1), plot.digits)}`;
  });
  label(canvas, `${plot.name} in ${plot.unit}: ${values.join(', ')}`);
}

function range(rows, lines, plot) {
  let low = Infinity, high = -Infinity;
  for (const row of rows) {
    for (const at of lines) {
      if (row[at] === null) continue;
      low = Math.min(low, row[at] * (plot.scale ?? 1));
      high = Math.max(high, row[at] * (plot.scale ?? 1));
    }
  }
  if (low > high) [low, high] = [0, 0];
  if (plot.isCentred) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  if (plot.floor !== undefined) low = plot.floor;
  // One run that took a second would flatten all others.
  if (plot.most !== undefined) high = Math.min(high, Math.max(plot.most, 2 * middle(rows, lines[0])));
  if (plot.names) return [-0.4, Math.min(plot.names.length - 1, Math.max(1, high)) + 0.4];
  const more = Math.max(plot.span || 1e-6 + 0.02 * Math.abs(high) - (high - low), 0.1 * (high - low));
  if (plot.floor !== undefined) return [low, high + more];
  return [low - more / 2, high + more / 2];
}

function middle(rows, at) {
  const values = rows.map(row => row[at]).filter(value => value !== null).sort((a, b) => a - b);
  return values[values.length >> 1] ?? 0;
}

// A round step so that about `count` fit.
function step(length, count) {
  const rough = length / count, power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find(one => one * power >= rough) ?? 10);
}

function axes(context, colours, {width, height, low, high, first, last, u, v, cursor, plot}) {
  context.lineWidth = 1;
  context.fillStyle = colours.soft;
  context.textAlign = 'right';
  const by = step(high - low, Math.max(2, height / 45));
  for (let value = Math.ceil(low / by) * by; value <= high + 1e-9; value += by) {
    const row = Math.round(v(value)) + 0.5;
    context.strokeStyle = Math.abs(value) < by / 2 && plot.isCentred ? colours.rule : colours.grid;
    context.beginPath();
    context.moveTo(LEFT, row);
    context.lineTo(width - RIGHT, row);
    context.stroke();
    if (plot.names) continue;
    context.fillText(number(Math.abs(value) < by / 2 ? 0 : value, Math.max(0, -Math.floor(Math.log10(by) + 1e-9))), LEFT - 5, row);
  }
  if (plot.names) levels(context, plot.names, low, high, v);
  context.textAlign = 'center';
  const seconds = step(last - first, Math.max(2, width / 90));
  // Live: seconds ago; a log: its time.
  const origin = cursor === null ? last : 0;
  for (let time = Math.ceil((first - origin) / seconds) * seconds; time <= last - origin + 1e-9; time += seconds) {
    const text = cursor === null && Math.abs(time) < 1e-9 ? 'now' : shown(time, seconds < 1 ? 1 : 0, 's');
    const column = u(time + origin);
    if (column > LEFT + 4 && column < width - 4) context.fillText(text, Math.min(column, width - RIGHT - 10), height - 8);
  }
  context.textAlign = 'start';
  if (plot.level !== undefined && plot.level < high) {
    context.strokeStyle = colours.drop;
    context.setLineDash([3, 4]);
    context.beginPath();
    context.moveTo(LEFT, v(plot.level));
    context.lineTo(width - RIGHT, v(plot.level));
    context.stroke();
    context.setLineDash([]);
  }
}

// Names of an enumeration at their levels, inside the plot: they are too long for its edge.
function levels(context, names, low, high, v) {
  context.textAlign = 'left';
  for (let level = 0; level <= high; level += 1) context.fillText(names[level], LEFT + 4, v(level) - 8);
}

// A number at an axis; large ones in few characters.
function number(value, digits) {
  if (Math.abs(value) < 1e5) return shown(value, Math.min(digits, 6));
  return value.toExponential(1).replace('e+', 'e');
}

function marks(context, colours, rows, column, u, height) {
  context.fillStyle = colours.invalid;
  for (let at = 0; at < rows.length; at += 1) {
    if (rows[at][column.valid] !== 0) continue;
    const end = at + 1 < rows.length ? Math.min(rows[at + 1][0], rows[at][0] + GAP_S) : rows[at][0] + 0.05;
    context.fillRect(u(rows[at][0]), height - BOTTOM, Math.max(1, u(end) - u(rows[at][0]) + 0.5), 3);
  }
  context.fillStyle = colours.drop;
  for (const row of rows) if (row[column.missing] > 0) context.fillRect(u(row[0]) - 1, height - BOTTOM - 9, 2, 9);
}

function line(context, rows, at, plot, {u, v, colour, thick, end}) {
  const scale = plot.scale ?? 1, gap = plot.gap ?? GAP_S;
  context.strokeStyle = colour;
  context.lineWidth = thick;
  context.lineJoin = 'round';
  context.beginPath();
  let before = null, level = null;
  for (const row of rows) {
    const value = row[at];
    if (value === null || value === undefined) continue;
    if (before !== null && row[0] - before < gap) {
      if (plot.isStep) context.lineTo(u(row[0]), v(level));
      context.lineTo(u(row[0]), v(value * scale));
    } else context.moveTo(u(row[0]), v(value * scale));
    [before, level] = [row[0], value * scale];
  }
  // A value holds until the next one comes.
  if (plot.isStep && before !== null && end > before) context.lineTo(u(end), v(level));
  context.stroke();
}

// A histogram of durations with buckets of equal width; `counts` has one more than `bounds`.
export function drawHistogram(canvas, counts, colour) {
  const area = surface(canvas);
  if (area === null) return;
  const {context, width, height} = area;
  const most = Math.max(1, ...counts), bar = width / counts.length;
  context.fillStyle = theme().grid;
  context.fillRect(0, height - 1, width, 1);
  context.fillStyle = colour;
  counts.forEach((count, at) => {
    if (!count) return;
    const size = Math.max(1.5, count / most * (height - 2));
    context.fillRect(at * bar + 0.5, height - size, Math.max(1, bar - 1), size);
  });
}

// The speed over a whole log, with its marks; at most one value for each pixel.
export function drawStrip(canvas, {rows, column, first, last, cursor, masks = []}) {
  const area = surface(canvas);
  if (area === null) return;
  const {context, width, height} = area;
  const colours = theme();
  // The thumb of the slider below keeps half its width from either end.
  const u = time => 8 + (last > first ? (time - first) / (last - first) : 0) * (width - 16);
  const every = Math.max(1, Math.floor(rows.length / (2 * width)));
  const some = every === 1 ? rows : rows.filter((_, at) => at % every === 0);
  let high = 1;
  for (const row of some) high = Math.max(high, row[column.carSpeed] ?? 0);
  const v = value => height - 5 - value / high * (height - 9);
  marks(context, colours, rows, column, u, height + BOTTOM - 4);
  context.strokeStyle = colours.car;
  context.lineWidth = 1.5;
  context.beginPath();
  for (const row of some) if (row[column.carSpeed] !== null) context.lineTo(u(row[0]), v(row[column.carSpeed]));
  context.stroke();
  // At most one mark for each pixel, however many rows differ.
  context.fillStyle = colours.differ;
  let drawn = -1;
  masks.forEach((mask, at) => {
    const place = mask ? Math.round(u(rows[at][0])) : drawn;
    if (place > drawn) context.fillRect(place - 0.5, 0, 1, 5);
    drawn = place;
  });
  context.fillStyle = colours.accent;
  context.fillRect(u(cursor) - 0.75, 0, 1.5, height);
}
