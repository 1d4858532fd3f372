// Numbers and health as text: elements are changed only where their text is another.

import {drawHistogram} from './plots.js';
import {label, shown, theme} from './surface.js';

const DEGREES = 180 / Math.PI;
const BLINKERS = ['off', 'left', 'right', 'both'];
// Seconds after which a daemon that says nothing of itself is not there any more.
const SILENT_S = 3;

const element = id => document.getElementById(id);

// Write name-value pairs into a list of descriptions.
function describe(list, pairs) {
  const key = pairs.map(([name]) => name).join();
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(...pairs.map(([name]) => {
      const box = document.createElement('div');
      const term = box.appendChild(document.createElement('dt'));
      term.textContent = name;
      box.appendChild(document.createElement('dd'));
      return box;
    }));
  }
  pairs.forEach(([, value, isOther], at) => {
    write(list.children[at].lastChild, value);
    list.children[at].classList.toggle('differs', isOther === true);
  });
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Fill the rows of a table, each a list of texts.
function fill(body, rows, numbers) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((texts, at) => {
    const row = body.rows[at] ?? body.insertRow();
    texts.forEach((text, column) => {
      const cell = row.cells[column] ?? row.insertCell();
      if (numbers.includes(column)) cell.className = 'number';
      write(cell, text);
    });
  });
}

// `other`: the second log's row of the same frame, or null; `mask`: a bit for each column that differs.
export function showNumbers(row, column, moment, other = null, mask = 0) {
  const value = name => (row ? row[column[name]] : null);
  const both = (name, text, unit = '') => {
    const [mine, theirs] = [row, other].map(one => (one ? one[column[name]] : null)).map(one => (one === null ? '–' : text(one)));
    const values = other ? `${mine} | ${theirs}` : mine;
    return [unit && values !== '–' ? `${values} ${unit}` : values, (mask >> column[name] & 1) === 1];
  };
  const [, pitch, yaw] = moment?.calibration.rpy ?? [null, null, null];
  const angle = one => (one === null ? '–' : `${shown(one * DEGREES, 2)}°`);
  const model = moment?.model;
  describe(element('numbers'), [
    ['frame', value('frameId') === null ? '–' : `${value('frameId')}`],
    ['model time', ...both('execution', one => shown(one, 1), 'ms')],
    ['car speed', ...both('carSpeed', one => shown(one, 1), 'm/s')],
    ['planned speed', ...both('planSpeed', one => shown(one, 1), 'm/s')],
    ['curvature', ...both('curvature', one => shown(1000 * one, 2), '/km')],
    ['acceleration', ...both('acceleration', one => shown(one, 2), 'm/s²')],
    ['steering wheel', ...both('steering', one => `${shown(one, 1)}°`)],
    ['blinkers', ...both('blinkers', one => BLINKERS[one])],
    ['line to the left', ...both('laneLeft', one => shown(-one, 2), 'm')],
    ['line to the right', ...both('laneRight', one => shown(one, 2), 'm')],
    ['dropped', model ? shown(model.dropPercent, 1, '%') : '–'],
    ['model action', model ? model.laneChange || model.desire || 'proceed' : '–'],
    ['calibration', moment?.calibration.status || 'none yet'],
    ['pitch, yaw', moment?.calibration.status ? `${angle(pitch)}, ${angle(yaw)}` : '–'],
  ]);
}

// Show what the daemon says of itself; return its state in a word or two.
export function showHealth(health, mode) {
  const state = element('health-state');
  if (!health) {
    state.removeAttribute('data-tone');
    write(state, 'No health messages so far.');
    element('stages').hidden = element('faults').hidden = true;
    element('problems').replaceChildren();
    describe(element('facts'), []);
    return '';
  }
  const isGone = (health.age ?? 0) > SILENT_S;
  const isHealthy = !health.problems.length && !isGone;
  state.dataset.tone = isHealthy ? 'good' : 'bad';
  const word = isGone ? 'silent' : isHealthy ? 'healthy' : 'not healthy';
  write(state, isGone ? `silent for ${shown(health.age, 0, 's')}; before: ${health.phase}` : `${word}, ${health.phase}`);
  const problems = element('problems');
  if (problems.dataset.key !== health.problems.join()) {
    problems.dataset.key = health.problems.join();
    problems.replaceChildren(...health.problems.map(text => {
      const item = document.createElement('li');
      item.textContent = text;
      return item;
    }));
  }
  const {frames, published, publishedValid, dropped} = health.frames;
  describe(element('facts'), [
    ['model', [health.model || '–', health.digest, ...health.checkpoints, health.isFallback ? 'the FALLBACK' : '']
      .filter(Boolean).join(', ')],
    ['device', [health.device, health.driver].filter(Boolean).join(', ') || '–'],
    ['self-test', health.selfTest.replace('notDone', 'not done')],
    ['frames', `${shown(health.rate, 1)}/s published; ${frames} used, ${published} published, `
      + `${publishedValid} valid, ${dropped} dropped`],
    ['process', `${health.process}, up ${duration(health.uptime)}, ${shown(health.memory / 2 ** 20, 0, 'MiB')}`],
  ]);
  showStages(health);
  element('faults').hidden = false;
  const faults = health.faults.map(one => [one.name, `${one.count}`, `${one.recent}`]);
  fill(element('fault-rows'), faults.length ? faults : [['none', '', '']], [1, 2]);
  return word;
}

function showStages(health) {
  const stages = health.stages.filter(stage => stage.counts.some(Boolean));
  element('stages').hidden = !stages.length;
  write(element('stages-since'), health.sinceStart ? 'since the start' : 'of the last seconds');
  const body = element('stage-rows');
  fill(body, stages.map(stage => [stage.name, shown(stage.median, 1), shown(stage.p99, 1)]), [1, 2]);
  stages.forEach((stage, at) => {
    const cell = body.rows[at].cells[3] ?? body.rows[at].insertCell();
    let canvas = cell.firstChild;
    if (!canvas) {
      canvas = cell.appendChild(document.createElement('canvas'));
      canvas.setAttribute('role', 'img');
    }
    drawHistogram(canvas, stage.counts, stage.name === 'model' ? theme().plan : theme().car);
    label(canvas, `Histogram of ${stage.name}: ${busiest(stage.counts, health.bounds)}`);
  });
}

function busiest(counts, bounds) {
  const at = counts.indexOf(Math.max(...counts));
  if (at === bounds.length) return `mostly over ${bounds[at - 1]} ms`;
  return `mostly ${at ? bounds[at - 1] : 0} to ${bounds[at]} ms`;
}

function duration(seconds) {
  if (seconds < 60) return shown(seconds, 0, 's');
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
}
