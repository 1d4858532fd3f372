// Two logs beside each other: rows belong together that have the same frame id.

// Frames beyond the first log's are not counted; of the columns these say nothing about the model.
const NOT_COMPARED = ['time', 'frameId', 'missing', 'execution'];
// How far a frame that both logs have is looked for: half the window of the plots.
const NEAR_ROWS = 300;
// Values differ that are further apart than a thousandth and than their last digits.
const RELATIVE = 1e-3;
export const MISSING = -1;

export function differ(one, other, digits = 6) {
  if (one === other) return false;
  if (typeof one !== 'number' || typeof other !== 'number') return true;
  return Math.abs(one - other) > RELATIVE * Math.max(Math.abs(one), Math.abs(other)) + 1.5 * 10 ** -digits;
}

export class Pair {
  // `digits`: of each column, behind the point.
  constructor(first, second, digits) {
    Object.assign(this, {first, second, digits});
    this.compared = Object.entries(first.column).filter(([name]) => !NOT_COMPARED.includes(name)).map(([, at]) => at);
    // For each row of the first log that was compared: a bit for each column that differs, or MISSING.
    this.masks = [];
    this.differing = this.missing = 0;
  }

  // Compare the rows that have come meanwhile.
  update() {
    const {first, second, masks} = this;
    while (masks.length < first.rows.length) {
      const row = first.rows[masks.length], other = this.other(masks.length);
      if (other === null && !second.isWhole) return;
      let mask = other === null ? MISSING : 0;
      if (other !== null) for (const at of this.compared) if (differ(row[at], other[at], this.digits[at])) mask |= 1 << at;
      if (mask === MISSING) this.missing += 1;
      else if (mask) this.differing += 1;
      masks.push(mask);
    }
  }

  // The second log's row of the same frame as a row of the first; null without one.
  other(at) {
    const row = this.first.rows[at];
    const found = row && this.second.byFrame.get(row[this.first.column.frameId]);
    return found === undefined || !row ? null : this.second.rows[found];
  }

  // Rows of the second log for the times of the first, with those times.
  between(first, last) {
    const found = [];
    for (let at = this.first.at(first, true); at <= this.first.at(last, true); at += 1) {
      const other = this.other(at);
      if (other) found.push([this.first.rows[at][0], ...other.slice(1)]);
    }
    return found;
  }

  // A time of one log in the other: that of the frame before, and what has passed since.
  toSecond(time) {
    return moved(this.first, this.second, time);
  }

  toFirst(time) {
    return moved(this.second, this.first, time);
  }

  // The next row, forth or back, that is not the same in both; null without one.
  next(at, by) {
    for (let row = at + by; row >= 0 && row < this.masks.length; row += by) if (this.masks[row]) return row;
    return null;
  }

  summary() {
    const {first, masks} = this;
    const done = masks.length < first.rows.length || !first.isWhole || !this.second.isWhole ? ' so far' : '';
    const missing = this.missing ? `; ${this.missing} are not in the second log` : '';
    return `${this.differing} of ${masks.length} frames differ${done}${missing}`;
  }
}

// Null where no frame of both logs is near.
function moved(from, to, time) {
  const start = from.at(time, true);
  for (let away = 0; away < NEAR_ROWS; away += 1) {
    for (const row of [from.rows[start - away], from.rows[start + away]]) {
      const found = row && to.byFrame.get(row[from.column.frameId]);
      if (found !== undefined) return to.rows[found][0] + time - row[0];
    }
  }
  return null;
}
