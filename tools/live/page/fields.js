// Fields of messages that somebody chose: search, plots or texts, and what they hold at the cursor.

import {differ} from './pair.js';
import {drawPlot} from './plots.js';
import {label} from './surface.js';

const MAX_FIELDS = 16, MAX_FOUND = 12;
// Times of rows and samples are rounded, and those of a second log are sums: nearer ones are the same.
const SAME_S = 1.5e-3;

const element = id => document.getElementById(id);
const general = path => path.replace(/\[\d*\]/g, '[]');

export class Fields {
  // `changed()` is called when other fields are chosen; `isGrowing()` says whether there may be more services.
  constructor(changed, isGrowing) {
    Object.assign(this, {changed, isGrowing});
    this.all = null;
    this.about = new Map();
    this.chosen = [];
    const search = element('search');
    search.onfocus = () => this.load();
    search.oninput = () => this.find();
    search.onkeydown = event => {
      if (event.key === 'Enter') element('found').querySelector('button')?.click();
      if (event.key === 'Escape') {
        this.end();
        search.blur();
      }
    };
    document.addEventListener('pointerdown', event => {
      if (!element('search-box').contains(event.target)) this.end();
    });
  }

  // The fields of the services that there are; asked for again while a log is being read.
  async load() {
    if (this.all !== null && !this.isStale) return;
    this.isStale = this.isGrowing();
    const answer = await fetch('/fields').catch(() => null);
    if (!answer?.ok) return;
    this.all = await answer.json();
    this.about = new Map(this.all.map(one => [one.field, one]));
    this.chosen.forEach(one => this.describe(one));
    this.find();
    this.changed();
  }

  find() {
    const words = element('search').value.toLowerCase().split(/\s+/).filter(Boolean);
    const list = element('found');
    if (this.all === null || !words.length) {
      list.replaceChildren();
      list.hidden = true;
      return;
    }
    const name = one => `${one.field} ${one.unit ?? ''}`.toLowerCase();
    const text = one => `${name(one)} ${one.about?.toLowerCase() ?? ''}`;
    // Short names come first; a word that only the comment has counts less than one in the name.
    const isAside = (one, word) => !name(one).includes(word);
    const cost = one => one.field.length + 100 * words.filter(word => isAside(one, word)).length + (one.about?.startsWith('retired') ? 1000 : 0);
    const found = this.all.filter(one => words.every(word => text(one).includes(word))).sort((a, b) => cost(a) - cost(b));
    list.hidden = false;
    list.replaceChildren(...found.slice(0, MAX_FOUND).map(one => this.item(one)));
    const note = document.createElement('li');
    note.className = 'note';
    note.textContent = found.length ? `${found.length} found` : 'no such field in these services';
    if (found.length > MAX_FOUND) note.textContent += `; the first ${MAX_FOUND} are shown`;
    list.append(note);
  }

  item(one) {
    const item = document.createElement('li'), button = item.appendChild(document.createElement('button'));
    button.type = 'button';
    button.append(one.field);
    const more = [one.unit, one.names ? 'names' : '', one.about === one.unit ? '' : one.about].filter(Boolean).join(', ');
    button.appendChild(document.createElement('small')).textContent = more;
    button.onclick = () => {
      this.add(one.field.replaceAll('[]', '[0]'));
      this.end();
    };
    return item;
  }

  end() {
    element('search').value = '';
    this.find();
  }

  paths() {
    return this.chosen.map(one => one.field);
  }

  layout() {
    return this.chosen.map(({field, as}) => ({field, as}));
  }

  // Show these fields and no others.
  set(chosen) {
    this.chosen.forEach(one => one.box.remove());
    this.chosen = [];
    chosen.forEach(({field, as}) => this.add(field, as));
    if (chosen.length) this.load();
    this.changed();
  }

  add(field, as = null) {
    if (this.chosen.length >= MAX_FIELDS || this.paths().includes(field)) return;
    const box = element('field-template').content.firstElementChild.cloneNode(true);
    const one = {field, as, box, canvas: box.querySelector('canvas')};
    this.chosen.push(one);
    element('chosen').append(box);
    box.querySelector('.remove').onclick = () => {
      this.chosen.splice(this.chosen.indexOf(one), 1);
      box.remove();
      this.changed();
    };
    box.querySelector('.as').onclick = () => {
      one.as = one.as === 'plot' ? 'text' : 'plot';
      this.describe(one);
      this.changed();
    };
    this.name(one);
    this.describe(one);
    this.changed();
  }

  // The field's path, with an input for each index.
  name(one) {
    const name = one.box.querySelector('.name');
    const parts = one.field.split(/\[(\d*)\]/);
    name.replaceChildren(...parts.map((part, at) => {
      if (at % 2 === 0) return document.createTextNode(part);
      const input = document.createElement('input');
      Object.assign(input, {type: 'number', min: 0, max: 9999, value: part});
      input.setAttribute('aria-label', `Index after ${parts[at - 1]}`);
      input.onchange = () => {
        parts[at] = `${Math.min(9999, Math.max(0, Math.floor(Number(input.value)) || 0))}`;
        one.field = parts.map((text, number) => (number % 2 ? `[${text}]` : text)).join('');
        this.describe(one);
        this.changed();
      };
      return input;
    }));
  }

  describe(one) {
    const about = this.about.get(general(one.field));
    const canPlot = about === undefined ? one.as !== 'text' : ['number', 'bool', 'enum'].includes(about.kind);
    one.as = canPlot ? one.as ?? 'plot' : 'text';
    one.about = about;
    const {box} = one;
    box.querySelector('small').textContent = about?.unit ?? '';
    box.querySelector('figcaption').title = about?.about ?? '';
    box.querySelector('.remove').setAttribute('aria-label', `Remove ${one.field}`);
    const as = box.querySelector('.as');
    as.hidden = !canPlot;
    as.textContent = one.as === 'plot' ? 'Text' : 'Plot';
    as.setAttribute('aria-label', `Show ${one.field} as ${one.as === 'plot' ? 'text' : 'plot'}`);
    one.canvas.hidden = one.as !== 'plot';
  }

  // Draw all; `view`: first, last, cursor (null: live), samples, and pair of logs or null.
  draw(view) {
    for (const one of this.chosen) this.drawOne(one, view);
  }

  drawOne(one, {first, last, cursor, samples, pair}) {
    const mine = samples.between(0, one.field, first, last);
    const others = pair === null ? [] : otherSamples(samples, pair, one.field, first, last);
    const at = cursor ?? last;
    const value = valueAt(mine, at), other = pair === null ? undefined : valueAt(others, at);
    const there = pair === null ? null : pair.toSecond(at);
    const isKnown = samples.knows(0, one.field, at), isOtherKnown = there === null || samples.knows(1, one.field, there);
    const isOther = pair !== null && isKnown && isOtherKnown && differ(value ?? null, other ?? null);
    const text = isKnown ? this.text(one, value) : '…';
    write(one.box.querySelector('.value'), text);
    write(one.box.querySelector('.other'), pair === null ? '' : isOtherKnown ? this.text(one, other) : '…');
    one.box.classList.toggle('differs', isOther);
    if (one.as !== 'plot') return;
    const names = one.about?.names ?? (one.about?.kind === 'bool' ? ['false', 'true'] : null);
    const number = name => (typeof name === 'number' ? name : name === null ? null : names ? names.indexOf(`${name}`) : null);
    const rows = list => list.map(([time, found]) => [time, number(found)]);
    const plot = {name: one.field, lines: [['value', '', 'plan', 1.6]], span: 0, gap: Infinity, isStep: names !== null, names};
    const marked = pair === null || !isKnown || !isOtherKnown ? [] : differences(mine, others);
    drawPlot(one.canvas, plot, {rows: rows(mine), others: rows(others), column: {value: 1}, first, last, cursor, marked});
    label(one.canvas, `${one.field}: ${text}${isOther ? `, second log ${this.text(one, other)}` : ''}`);
  }

  text({about}, value) {
    if (value === undefined) return 'none so far';
    if (value === null) return '–';
    if (typeof value !== 'number') return `${value}`;
    const text = Number.isInteger(value) ? `${value}` : `${Number(value.toPrecision(5))}`;
    return `${text.replace('-', '−')}${about?.unit ? ` ${about.unit}` : ''}`;
  }
}

// Samples of the second log, at the first one's times.
function otherSamples(samples, pair, field, first, last) {
  const from = pair.toSecond(first), to = pair.toSecond(last);
  if (from === null || to === null) return [];
  return samples.between(1, field, from, to).map(([time, value]) => [pair.toFirst(time), value]).filter(([time]) => time !== null);
}

// The times of samples that differ from what the second log holds then; both are in the order of time.
function differences(mine, others) {
  const times = [];
  let before = 0;
  for (const [time, value] of mine) {
    while (before < others.length && others[before][0] <= time + SAME_S) before += 1;
    if (differ(value, before ? others[before - 1][1] : null)) times.push(time);
  }
  return times;
}

// The newest value up to a time; undefined without one.
function valueAt(list, time) {
  let found;
  for (const [at, value] of list) {
    if (at > time + SAME_S) break;
    found = value;
  }
  return found;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
