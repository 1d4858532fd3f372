// The rows of a log, which come while it is being read: one for each answer, in time order.

export class Rows {
  constructor(column) {
    Object.assign(this, {column, rows: [], share: 0, isWhole: false, hasAnswers: false, notes: []});
    this.byFrame = new Map();
  }

  // Take a message of rows; after a lost connection they come again from the first.
  take({first, columns, share, whole, hasAnswers, notes}) {
    const count = columns[0].length;
    for (let at = Math.max(0, this.rows.length - first); at < count; at += 1) {
      const row = columns.map(values => values[at]);
      const frame = row[this.column.frameId];
      if (!this.byFrame.has(frame)) this.byFrame.set(frame, this.rows.length);
      this.rows.push(row);
    }
    Object.assign(this, {share, isWhole: whole, hasAnswers, notes});
  }

  get end() {
    return this.rows.length - 1;
  }

  get lastTime() {
    return this.rows.length ? this.rows[this.end][0] : 0;
  }

  // The last row up to a time, or the first one from it on.
  at(time, isBefore) {
    let low = 0, high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle][0] < time - 1e-6 || (isBefore && this.rows[middle][0] <= time + 1e-6)) low = middle + 1;
      else high = middle;
    }
    return Math.min(Math.max(isBefore ? low - 1 : low, 0), Math.max(0, this.end));
  }

  between(first, last) {
    return this.rows.slice(this.at(first, true), this.at(last, true) + 1);
  }

  // The first row that is worth looking at: the model's histories are full, and it is valid. A log that is shorter
  // begins with its first valid row.
  afterWarmUp(count) {
    const first = this.end > count ? count : 0;
    const found = this.rows.findIndex((row, at) => at >= first && row[this.column.valid] !== 0);
    return found < 0 ? first : found;
  }
}
