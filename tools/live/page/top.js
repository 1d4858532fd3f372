// The model's answer from above: metres, ahead is up.

import {label, shown, surface, theme} from './surface.js';

const AHEAD_M = 82, BEHIND_M = 7, GRID_M = 10;
const CAR_LENGTH_M = 4.5, CAR_WIDTH_M = 1.8;

// `other`: the answer of a second log to the same frame, or null.
export function drawTop(canvas, model, other = null) {
  const area = surface(canvas);
  if (area === null) return;
  const {context, width, height} = area;
  const colours = theme();
  const scale = height / (AHEAD_M + BEHIND_M);
  // Of the car's frame: x ahead, y to the right.
  const u = y => width / 2 + y * scale;
  const v = x => height - (x + BEHIND_M) * scale;
  grid(context, colours, {width, height, u, v, scale});
  car(context, u(0), v(0), scale, colours.car);
  if (other) outlines(context, other, {u, v}, colours.other);
  if (model) answer(context, colours, model, {u, v, scale});
  else centred(context, 'no answer', width, height, colours.soft);
  const path = model?.path.length ?? 0;
  label(canvas, model
    ? `View from above: the path leads ${shown(model.path[path - 2] ?? null, 0)} metres ahead`
      + `, vehicle ahead ${model.leads.length ? `at ${shown(model.leads[0].x, 0)} metres` : 'none'}`
    : 'View from above: no answer');
}

function grid(context, colours, {width, height, u, v, scale}) {
  context.lineWidth = 1;
  context.strokeStyle = colours.grid;
  context.beginPath();
  for (let x = 0; x <= AHEAD_M; x += GRID_M) {
    context.moveTo(0, Math.round(v(x)) + 0.5);
    context.lineTo(width, Math.round(v(x)) + 0.5);
  }
  const half = Math.floor(width / 2 / scale / GRID_M) * GRID_M;
  for (let y = -half; y <= half; y += GRID_M) {
    context.moveTo(Math.round(u(y)) + 0.5, 0);
    context.lineTo(Math.round(u(y)) + 0.5, height);
  }
  context.stroke();
  context.fillStyle = colours.soft;
  for (let x = 20; x <= AHEAD_M - 5; x += 20) context.fillText(`${x} m`, 3, v(x) - 8);
}

// A second answer, under the first one: where they are the same, only the first is seen.
function outlines(context, model, place, colour) {
  context.setLineDash([4, 4]);
  stroke(context, model.path, place, colour, 3, 1);
  for (const lane of model.lanes) stroke(context, lane.points, place, colour, 2.5, Math.max(0.3, lane.probability));
  for (const edge of model.edges) stroke(context, edge, place, colour, 2, 0.6);
  context.setLineDash([]);
}

function answer(context, colours, model, place) {
  const {scale} = place;
  context.lineJoin = context.lineCap = 'round';
  stroke(context, model.path, place, colours.path, CAR_WIDTH_M * scale, 0.28);
  stroke(context, model.path, place, colours.path, 2, 1);
  for (const lane of model.lanes) stroke(context, lane.points, place, colours.lane, 2.2, Math.max(0.15, lane.probability));
  context.setLineDash([6, 5]);
  for (const edge of model.edges) stroke(context, edge, place, colours.edge, 2, 0.9);
  context.setLineDash([]);
  model.leads.slice(0, 1).forEach(lead => {
    car(context, place.u(lead.y), place.v(lead.x + CAR_LENGTH_M), scale, colours.lead);
    context.fillStyle = colours.lead;
    context.fillText(`${shown(lead.x, 0, 'm')}, ${shown(lead.speed, 0, 'm/s')}`,
      place.u(lead.y) + CAR_WIDTH_M * scale, place.v(lead.x + CAR_LENGTH_M / 2));
  });
}

function stroke(context, points, {u, v}, colour, width, opacity) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.globalAlpha = opacity;
  context.beginPath();
  for (let at = 0; at < points.length; at += 2) {
    if (points[at] > AHEAD_M + 20) break;
    context.lineTo(u(points[at + 1]), v(points[at]));
  }
  context.stroke();
  context.globalAlpha = 1;
}

function car(context, u, v, scale, colour) {
  context.fillStyle = colour;
  context.beginPath();
  context.roundRect(u - CAR_WIDTH_M / 2 * scale, v, CAR_WIDTH_M * scale, CAR_LENGTH_M * scale, 3);
  context.fill();
}

function centred(context, text, width, height, colour) {
  context.fillStyle = colour;
  context.textAlign = 'center';
  context.fillText(text, width / 2, height / 2);
  context.textAlign = 'start';
}
