// The camera's picture with the model's answer over it.

import {FONT, label, shown, surface} from './surface.js';

// The same on bright and dark pages: what lies below is a picture.
const PATH = 'rgba(34, 197, 94, 0.42)', PATH_RIM = 'rgba(187, 247, 208, 0.85)';
const LANE = '56, 189, 248', EDGE = 'rgba(248, 80, 80, 0.8)', LEAD = '#fbbf24', OTHER = '#f472b6', PLATE = 'rgba(15, 23, 42, 0.72)';
// An improbable line stays just visible.
const MIN_OPACITY = 0.12;

// Draw a moment; `bitmap` is its picture, or an older one while a new one is decoded.
export function drawPicture(canvas, moment, bitmap, withDrawing) {
  const about = moment?.picture;
  if (about?.width) canvas.style.setProperty('--ratio', about.width / about.height);
  const area = surface(canvas);
  if (area === null) return;
  const {context, width, height} = area;
  if (bitmap !== null) context.drawImage(bitmap, 0, 0, width, height);
  if (bitmap === null || !about) {
    write(context, about?.whyNot || 'no picture yet', width, height);
  } else if (moment.decoding) {
    plate(context, 'decoding …', 8, height - 12, LEAD);
  } else if (about.whyNot) {
    plate(context, 'picture of before', 8, height - 12, LEAD);
  } else if (withDrawing && moment.overlay !== null) {
    drawAnswer(context, moment.overlay, width / about.width, height / about.height);
    if (moment.other?.overlay) drawOther(context, moment.other.overlay, width / about.width, height / about.height);
  }
  marks(context, moment);
  label(canvas, describe(moment, bitmap));
}

function drawAnswer(context, overlay, sx, sy) {
  for (const edge of overlay.edges) fill(context, edge, sx, sy, EDGE);
  for (const lane of overlay.lanes) {
    fill(context, lane.points, sx, sy, `rgba(${LANE}, ${Math.max(MIN_OPACITY, lane.probability)})`);
  }
  if (fill(context, overlay.path, sx, sy, PATH)) {
    context.strokeStyle = PATH_RIM;
    context.lineWidth = 1.5;
    context.stroke();
  }
  for (const lead of overlay.leads) drawLead(context, lead, sx, sy);
}

// The answer of a second log: its outlines only.
function drawOther(context, overlay, sx, sy) {
  context.setLineDash([6, 4]);
  for (const points of [overlay.path, ...overlay.lanes.filter(lane => lane.probability > 0.5).map(lane => lane.points)]) {
    if (!fill(context, points, sx, sy, 'transparent')) continue;
    context.strokeStyle = OTHER;
    context.lineWidth = 1.5;
    context.stroke();
  }
  context.setLineDash([]);
}

function fill(context, points, sx, sy, style) {
  if (points.length < 6) return false;
  context.beginPath();
  for (let at = 0; at < points.length; at += 2) context.lineTo(points[at] * sx, points[at + 1] * sy);
  context.closePath();
  context.fillStyle = style;
  context.fill();
  return true;
}

function drawLead(context, lead, sx, sy) {
  const [left, top, right, bottom] = [lead.box[0] * sx, lead.box[1] * sy, lead.box[2] * sx, lead.box[3] * sy];
  const size = Math.max((right - left) * 0.25, 3);
  context.strokeStyle = LEAD;
  context.lineWidth = 2.5;
  for (const [u, du] of [[left, size], [right, -size]]) {
    for (const [v, dv] of [[top, size], [bottom, -size]]) {
      context.beginPath();
      context.moveTo(u, v + dv);
      context.lineTo(u, v);
      context.lineTo(u + du, v);
      context.stroke();
    }
  }
  plate(context, `${shown(lead.x, 0, 'm')}  ${shown(lead.speed, 0, 'm/s')}`, (left + right) / 2 - 36, bottom + 13, LEAD);
}

// What is out of the ordinary, in the upper left corner.
function marks(context, moment) {
  const model = moment?.model;
  if (!model) return;
  let row = 16;
  for (const [text, colour] of [
    [model.valid ? '' : 'not valid', LEAD], [model.laneChange, '#7dd3fc'], [model.desire, '#7dd3fc'],
  ]) {
    if (!text) continue;
    plate(context, text, 8, row, colour);
    row += 26;
  }
}

function plate(context, text, left, middle, colour) {
  context.font = FONT;
  const width = context.measureText(text).width + 12;
  context.fillStyle = PLATE;
  context.beginPath();
  context.roundRect(left, middle - 10, width, 20, 5);
  context.fill();
  context.fillStyle = colour;
  context.fillText(text, left + 6, middle + 0.5);
}

function write(context, text, width, height) {
  context.fillStyle = '#cbd5e1';
  context.textAlign = 'center';
  const lines = [];
  for (const word of text.split(' ')) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && context.measureText(longer).width < width - 40) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  const top = height / 2 - 9 * (lines.length - 1);
  lines.forEach((line, at) => context.fillText(line, width / 2, top + 18 * at));
  context.textAlign = 'start';
}

function describe(moment, bitmap) {
  const about = moment?.picture;
  if (bitmap === null || !about) return `Picture of the camera: ${about?.whyNot || 'none yet'}`;
  const name = about.camera === 'road' ? 'road camera' : 'wide camera';
  const leads = moment.model?.leads.length ? ', with a vehicle ahead' : '';
  return `Picture of the ${name}${moment.overlay ? `, with path, lane lines and road edges${leads}` : ''}`;
}
