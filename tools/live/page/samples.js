// Samples of fields: of a log in pieces that are asked for as they come into view, of a daemon as they come.

// Pieces that are kept: enough for the window in two logs, and for where one was before.
const KEPT = 48;
// What was asked for and has not come is asked for again, as is what had not been read yet.
const AGAIN_MS = 1500;

export class LogSamples {
  // `ask({log, chunk, fields})` asks for a piece of `seconds`; `fields()` returns the paths that are shown.
  constructor(seconds, ask, fields) {
    Object.assign(this, {seconds, ask, fields});
    this.pieces = new Map();
  }

  take({log, chunk, whole, fields}) {
    const piece = this.piece(log, chunk);
    piece.isWhole = whole;
    Object.assign(piece.fields, fields);
  }

  // Samples [time, value] of a field from one time to another, and the last one before.
  between(log, path, first, last) {
    const found = [];
    for (let chunk = Math.floor(Math.max(0, first) / this.seconds); chunk * this.seconds <= last; chunk += 1) {
      const piece = this.wanted(log, chunk, path);
      const [times, values] = piece.fields[path] ?? [[], []];
      for (let at = 0; at < times.length; at += 1) {
        // Each piece begins with the last sample before it, which the one before has, too.
        if (!found.length || times[at] > found.at(-1)[0]) found.push([times[at], values[at]]);
      }
    }
    let start = 0;
    while (start + 1 < found.length && found[start + 1][0] <= first) start += 1;
    let end = found.length;
    while (end > start && found[end - 1][0] > last) end -= 1;
    return found.slice(start, end);
  }

  // Whether what a field holds at a time has come.
  knows(log, path, time) {
    const piece = this.pieces.get(`${log}:${Math.floor(Math.max(0, time) / this.seconds)}`);
    return piece !== undefined && path in piece.fields;
  }

  piece(log, chunk) {
    const key = `${log}:${chunk}`;
    const piece = this.pieces.get(key) ?? {fields: {}, asked: -Infinity, isWhole: false};
    // What was used last is the last to be dropped.
    this.pieces.delete(key);
    this.pieces.set(key, piece);
    if (this.pieces.size > KEPT) this.pieces.delete(this.pieces.keys().next().value);
    return piece;
  }

  wanted(log, chunk, path) {
    const piece = this.piece(log, chunk);
    const isMissing = !(path in piece.fields);
    if ((isMissing || !piece.isWhole) && performance.now() - piece.asked > AGAIN_MS) {
      piece.asked = performance.now();
      const fields = this.fields().filter(one => !piece.isWhole || !(one in piece.fields));
      this.ask({log, chunk, fields});
    }
    return piece;
  }

  // Another field was chosen: ask for it at once.
  renew() {
    for (const piece of this.pieces.values()) piece.asked = -Infinity;
  }
}

export class LiveSamples {
  constructor(seconds) {
    this.seconds = seconds;
    this.found = {};
  }

  take(samples, now) {
    for (const [path, [times, values]] of Object.entries(samples)) {
      const mine = this.found[path] ??= [];
      times.forEach((time, at) => mine.push([time, values[at]]));
      // The last one before the window holds into it.
      while (mine.length > 1 && mine[1][0] < now - this.seconds) mine.shift();
    }
  }

  between(log, path, first, last) {
    return (this.found[path] ?? []).filter(([time]) => time <= last);
  }

  knows() {
    return true;
  }

  renew() {}
}
