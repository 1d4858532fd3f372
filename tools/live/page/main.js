// The page: takes messages, keeps what is shown, draws it once a frame of the screen.

import {Connection} from './connection.js';
import {Fields} from './fields.js';
import {bindKeys} from './keys.js';
import {Layout} from './layout.js';
import {Pair} from './pair.js';
import {showHealth, showNumbers} from './panels.js';
import {drawPicture} from './picture.js';
import {PLOTS, drawPlot, drawStrip, labelPlot} from './plots.js';
import {Rows} from './rows.js';
import {LiveSamples, LogSamples} from './samples.js';
import {label, onThemeChange} from './surface.js';
import {Timeline} from './timeline.js';
import {drawTop} from './top.js';

// How often descriptions for screen readers are written anew, and what changed is announced.
const LABELS_MS = 1000, ANNOUNCE_MS = 3000;
// Somebody who wants less motion gets this many pictures a second.
const CALM_HZ = 2;
const LOG_BEFORE_S = 20;

const element = id => document.getElementById(id);
const calm = matchMedia('(prefers-reduced-motion: reduce)');

const page = {
  hello: null, column: {}, rows: [], logs: [], pair: null, samples: null, moment: null, bitmap: null, timeline: null,
  isFrozen: false, hasDrawing: true, camera: 'road', lost: null, isDirty: false, labelled: 0, announced: -Infinity, said: '', turn: 0, shown: 0,
};

const connection = new Connection({
  open: () => { page.lost = null; },
  lost: (reason, isFull) => {
    page.lost = {reason, isFull, since: page.lost?.since ?? performance.now()};
    dirty();
  },
  message: (json, jpeg) => kinds[json.kind]?.(json, jpeg),
});

const fields = new Fields(chosen, () => page.logs.some(log => !log.isWhole));
const layout = new Layout(fields, text => connection.tell({layout: text}), dirty);
const kinds = {
  hello: begin,
  moment: take,
  rows: takeRows,
  series: json => { page.samples.take(json); dirty(); },
  layout: json => layout.take(json),
};

// Other fields were chosen.
function chosen() {
  page.samples?.renew();
  if (page.hello?.mode === 'live') connection.ask({fields: fields.paths()});
  dirty();
}

function begin(hello) {
  page.lost = null;
  const isSame = page.hello?.mode === hello.mode && page.hello?.title === hello.title;
  page.hello = hello;
  page.column = Object.fromEntries(hello.columns.map((name, at) => [name, at]));
  document.body.className = hello.mode;
  element('title').textContent = hello.title;
  document.title = `${hello.title} – modeld view`;
  element('timeline').hidden = hello.mode !== 'log';
  element('pause').hidden = hello.mode === 'log';
  if (hello.mode === 'live') {
    page.rows = [];
    page.samples = new LiveSamples(hello.window);
  } else if (isSame && page.timeline) {
    page.timeline.askAgain();
  } else {
    page.logs = Array.from({length: hello.logs}, () => new Rows(page.column));
    page.pair = hello.logs > 1 ? new Pair(...page.logs, hello.digits) : null;
    page.rows = page.logs[0].rows;
    page.samples = new LogSamples(hello.chunk, series => connection.tell({series}), () => fields.paths());
    page.timeline = null;
    element('pair').hidden = page.pair === null;
    element('other-key').hidden = page.pair === null;
    element('other-title').textContent = hello.other ?? '';
    cameras(hello.cameras);
  }
  if (hello.layout && !isSame) layout.apply(hello.layout);
  dirty();
}

// Rows of a log, which may still be read.
function takeRows(json) {
  const {hello, logs} = page;
  logs[json.log].take(json);
  page.pair?.update();
  const [log] = logs;
  if (page.timeline) page.timeline.grow();
  else if (log.isWhole || log.end >= hello.warmUp) {
    page.timeline = new Timeline(log, row => connection.ask({row}), dirty);
    page.timeline.goTo(log.afterWarmUp(hello.warmUp));
  }
  notes(logs.flatMap((one, at) => one.notes.map(note => (at ? `second log: ${note}` : note))));
  dirty();
}

function take(moment, jpeg) {
  if (page.hello.mode === 'live') {
    const oldest = moment.now - page.hello.window - 2;
    page.rows.push(...moment.rows);
    while (page.rows.length && page.rows[0][0] < oldest) page.rows.shift();
    page.samples.take(moment.samples, moment.now);
    if (page.isFrozen) {
      connection.tell({got: moment.number});
      return;
    }
    notes(moment.notes);
    cameras(moment.cameras);
  } else {
    if (page.timeline === null) return;
    page.timeline.arrived(!moment.decoding);
    // An answer to what was asked for before something else was.
    if (moment.row !== page.timeline.at) return;
  }
  if (!jpeg.length) {
    show(moment, moment.decoding ? page.bitmap : null);
    return;
  }
  // Decoders run beside each other: what is older than what is shown comes too late.
  const turn = ++page.turn;
  const late = () => turn < page.shown || (page.shown = turn, false);
  createImageBitmap(new Blob([jpeg], {type: 'image/jpeg'})).then(
    bitmap => (late() ? bitmap.close() : show(moment, bitmap)),
    () => late() || show({...moment, picture: {...moment.picture, whyNot: 'the picture cannot be decoded'}}, null),
  );
}

function show(moment, bitmap) {
  // The view sends the next when this is shown, not before.
  if (moment.number) connection.tell({got: moment.number});
  if (page.bitmap !== null && page.bitmap !== bitmap) page.bitmap.close();
  page.moment = moment;
  page.bitmap = bitmap;
  dirty();
}

function dirty() {
  if (page.isDirty) return;
  page.isDirty = true;
  requestAnimationFrame(() => {
    page.isDirty = false;
    draw();
  });
}

function draw() {
  const {hello, moment, timeline, pair} = page;
  state();
  if (hello === null || (hello.mode === 'log' && timeline === null)) return;
  const isLog = hello.mode === 'log';
  drawPicture(element('picture'), moment, page.bitmap, page.hasDrawing);
  element('picture-note').textContent = pictureNote();
  drawTop(element('top'), moment?.model ?? null, moment?.other?.model ?? null);
  const window = span();
  drawPlots(window);
  fields.draw({...window, samples: page.samples, pair});
  const row = isLog ? page.rows[timeline.at] : moment?.waiting ? null : page.rows.at(-1);
  const mask = pair?.masks[timeline.at] ?? 0;
  showNumbers(row ?? null, page.column, moment, pair?.other(timeline.at) ?? null, mask > 0 ? mask : 0);
  const last = isLog ? page.logs[0].lastTime : 0;
  if (isLog) drawStrip(element('strip'), {rows: page.rows, column: page.column, first: 0, last, cursor: timeline.time, masks: pair?.masks});
  if (pair) element('pair-text').textContent = pair.summary();
  if (performance.now() - page.labelled > LABELS_MS) {
    page.labelled = performance.now();
    for (const plot of PLOTS) labelPlot(element(`plot-${plot.id}`), plot, row, page.column);
    if (isLog) label(element('strip'), `Speed over the whole log, ${last.toFixed(0)} seconds`);
  }
}

function drawPlots(window) {
  const {first, last} = window, {pair, column} = page;
  const rows = page.hello.mode === 'log' ? page.logs[0].between(first, last) : page.rows.filter(row => row[0] >= first);
  const others = pair === null ? [] : pair.between(first, last);
  const from = pair === null ? 0 : page.logs[0].at(first, true);
  for (const plot of PLOTS) {
    const bits = plot.lines.reduce((all, [name]) => all | 1 << column[name], 0);
    const marked = pair === null ? [] : rows.filter((_, at) => (pair.masks[from + at] ?? 0) & bits).map(row => row[0]);
    drawPlot(element(`plot-${plot.id}`), plot, {rows, others, column, ...window, marked});
  }
}

// The times that plots show.
function span() {
  const {hello, rows, moment, timeline} = page;
  if (hello.mode === 'live') {
    const last = moment?.now ?? rows.at(-1)?.[0] ?? 0;
    return {first: last - hello.window, last, cursor: null};
  }
  const end = page.logs[0].lastTime;
  const first = Math.max(0, Math.min(timeline.time - LOG_BEFORE_S, end - hello.window));
  return {first, last: Math.max(Math.min(end, first + hello.window), first + 1), cursor: timeline.time};
}

function pictureNote() {
  const {moment} = page;
  if (!moment) return '';
  const {picture, model} = moment;
  const parts = [picture.note];
  if (page.bitmap !== null && picture.width) parts.push(`frame ${picture.frameId}, ${picture.width}×${picture.height}`);
  if (moment.hardware) parts.push(moment.hardware);
  if (model && picture.camera === 'road' && picture.frameId !== null && picture.frameId !== model.frameId) {
    parts.push(`drawn over it: the answer to frame ${model.frameId}`);
  }
  if (moment.skipped) parts.push(`skipped by this page: ${moment.skipped}`);
  return parts.filter(Boolean).join(' · ');
}

// The state in the head, the banner, and what is announced.
function state() {
  const {hello, moment, lost} = page;
  const health = showHealth(moment?.health ?? null, hello?.mode);
  let tone = 'good', word = '', text = '', more = '';
  if (lost !== null) {
    tone = 'bad';
    word = lost.isFull ? 'full' : 'not connected';
    text = lost.isFull ? `${lost.reason}; close one of them.` : 'modeld view has ended, or the connection is lost.';
    more = lost.isFull ? 'This page tries again every few seconds.' : 'This page connects again by itself.';
  } else if (hello === null) {
    tone = 'idle';
    word = 'connecting';
  } else if (hello.mode === 'log') {
    [tone, word] = ['idle', 'log'];
    if (page.logs[0].isWhole && !page.logs[0].hasAnswers) [tone, text] = ['warn', 'This log has no output of a model: no modelV2 in it.'];
    else if (hello.whyNoFrames && page.timeline) [tone, text] = ['warn', `No pictures: ${hello.whyNoFrames}.`];
  } else if (moment === null) {
    [tone, word] = ['idle', 'connecting'];
  } else if (moment.waiting) {
    const {service, address, since, seen} = moment.waiting;
    [tone, word] = ['warn', 'waiting'];
    text = `waiting for ${service} on ${address}`;
    more = `since ${since} s${seen ? '; it came before' : '; start the daemon with: modeld run'}`;
  } else if (health === 'not healthy') {
    [tone, word] = ['bad', 'not healthy'];
  } else {
    word = moment.model?.valid ? 'running' : 'not valid';
    tone = moment.model?.valid ? 'good' : 'warn';
  }
  if (page.isFrozen) word += ', frozen';
  element('state').dataset.tone = tone;
  if (element('state-text').textContent !== word) element('state-text').textContent = word;
  const banner = element('banner');
  banner.hidden = !text;
  banner.dataset.tone = tone;
  if (element('banner-text').textContent !== text) element('banner-text').textContent = text;
  if (element('banner-more').textContent !== more) element('banner-more').textContent = more;
  announce(text ? `${word}: ${text}` : word);
}

// Say a change of state, not more often than every few seconds.
function announce(text) {
  const now = performance.now();
  if (text === page.said || now - page.announced < ANNOUNCE_MS) return;
  [page.said, page.announced] = [text, now];
  element('announce').textContent = text;
}

function notes(lines) {
  const text = lines.map(line => `Note: ${line}`).join('\n');
  const foot = element('notes');
  if (foot.dataset.key === text) return;
  foot.dataset.key = text;
  foot.replaceChildren(...text.split('\n').filter(Boolean).map(line => {
    const paragraph = document.createElement('p');
    paragraph.textContent = line;
    return paragraph;
  }));
}

function cameras(names) {
  const button = element('camera');
  button.hidden = names.length < 2;
  // With one camera that is not the one asked for, what there is is shown.
  if (names.length === 1 && names[0] !== page.camera) chooseCamera(names[0]);
}

function chooseCamera(name) {
  page.camera = name;
  element('camera').textContent = name === 'road' ? 'Wide camera' : 'Road camera';
  connection.ask({camera: name});
}

function freeze() {
  page.isFrozen = !page.isFrozen;
  element('pause').setAttribute('aria-pressed', `${page.isFrozen}`);
  dirty();
}

const actions = {
  play: () => (page.hello?.mode === 'log' ? page.timeline?.toggle() : freeze()),
  timeline: () => page.timeline,
  camera: () => { if (!element('camera').hidden) chooseCamera(page.camera === 'road' ? 'wideRoad' : 'road'); },
  difference: by => {
    const row = page.pair?.next(page.timeline.at, by) ?? null;
    if (row !== null) page.timeline.move(row);
  },
  drawing: () => {
    page.hasDrawing = !page.hasDrawing;
    element('overlay').setAttribute('aria-pressed', `${page.hasDrawing}`);
    dirty();
  },
  help: () => unfold('help', 'keys'),
};

function unfold(id, button) {
  element(id).hidden = !element(id).hidden;
  element(button).setAttribute('aria-expanded', `${!element(id).hidden}`);
}

element('pause').onclick = freeze;
element('camera').onclick = actions.camera;
element('overlay').onclick = actions.drawing;
element('keys').onclick = actions.help;
element('layout-button').onclick = () => unfold('layout', 'layout-button');
element('previous').onclick = () => actions.difference(-1);
element('next').onclick = () => actions.difference(1);
bindKeys(actions);
onThemeChange(dirty);
new ResizeObserver(dirty).observe(document.body);
// A page that nobody sees asks for nothing.
document.addEventListener('visibilitychange', () => connection.ask({paused: document.hidden}));
const pace = () => connection.ask({rate: calm.matches ? CALM_HZ : 60});
calm.addEventListener('change', pace);
if (calm.matches) pace();
// The time for which something has been lost goes on by itself, as do announcements.
setInterval(dirty, 1000);
