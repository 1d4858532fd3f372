// The timeline of a log: where it stands, playing, stepping, and asking for what is to be seen.

const element = id => document.getElementById(id);

export class Timeline {
  // `log`: its rows, which may grow; `ask(row)` asks for a row; `changed()` is called when the position or playing changes.
  constructor(log, ask, changed) {
    Object.assign(this, {log, ask, changed});
    this.at = 0;
    this.isPlaying = false;
    this.isAsked = false;
    this.begun = null;
    const position = element('position');
    position.oninput = () => this.move(Number(position.value));
    element('play').onclick = () => this.toggle();
    element('back').onclick = () => this.step(-1);
    element('forth').onclick = () => this.step(1);
    element('speed').onchange = () => this.restart();
    element('goto').onsubmit = event => {
      event.preventDefault();
      this.find(element('place').value);
    };
    this.grow();
  }

  // More rows have come.
  grow() {
    element('position').max = Math.max(0, this.end);
    this.show();
  }

  get rows() {
    return this.log.rows;
  }

  get time() {
    return this.rows.length ? this.rows[this.at][0] : 0;
  }

  get end() {
    return this.log.end;
  }

  move(row) {
    this.goTo(row);
    this.restart();
  }

  step(count) {
    this.stop();
    this.goTo(this.at + count);
  }

  // Step a time, in seconds.
  skip(seconds) {
    this.move(this.log.at(this.time + seconds, seconds < 0));
  }

  toggle() {
    if (this.isPlaying) {
      this.stop();
      return;
    }
    if (this.at >= this.end && this.log.isWhole) this.goTo(0);
    this.isPlaying = true;
    this.restart();
    this.show();
    requestAnimationFrame(() => this.play());
  }

  stop() {
    this.isPlaying = false;
    this.show();
  }

  faster(by) {
    const speed = element('speed');
    speed.selectedIndex = Math.min(Math.max(speed.selectedIndex + by, 0), speed.options.length - 1);
    this.restart();
  }

  // What was asked for has come.
  arrived(isComplete) {
    if (isComplete) this.isAsked = false;
  }

  // After a lost connection.
  askAgain() {
    this.goTo(this.at);
  }

  goTo(row) {
    this.at = Math.min(Math.max(row, 0), Math.max(0, this.end));
    this.isAsked = true;
    this.ask(this.at);
    this.show();
    this.changed();
  }

  // Playing begins anew from where it stands, at the speed that is chosen.
  restart() {
    this.begun = {clock: performance.now(), time: this.time};
  }

  play() {
    if (!this.isPlaying) return;
    const speed = Number(element('speed').value);
    const time = this.begun.time + speed * (performance.now() - this.begun.clock) / 1000;
    // Pictures that are slow to decode are waited for; rows in between are passed over.
    if (!this.isAsked) {
      const row = this.log.at(time, true);
      if (row !== this.at) this.goTo(row);
      if (this.at >= this.end && this.log.isWhole) {
        this.stop();
        return;
      }
    }
    requestAnimationFrame(() => this.play());
  }

  // Go to "12.5" seconds, "1:02.5" minutes, "#340" of a frame.
  find(text) {
    const row = this.rowOf(text.trim());
    element('place').setAttribute('aria-invalid', `${row === null}`);
    if (row !== null) this.move(row);
  }

  rowOf(text) {
    const id = /^#\s*(\d+)$/.exec(text);
    if (id) {
      return this.log.byFrame.get(Number(id[1])) ?? null;
    }
    const time = /^(?:(\d+):)?(\d+(?:\.\d*)?)(?: ?s)?$/.exec(text);
    return time ? this.log.at(60 * Number(time[1] ?? 0) + Number(time[2]), false) : null;
  }

  show() {
    const position = element('position'), row = this.rows[this.at];
    position.value = this.at;
    const frame = row ? row[this.log.column.frameId] : 0;
    position.setAttribute('aria-valuetext', `${this.time.toFixed(2)} seconds, frame ${frame}`);
    const reading = this.log.isWhole ? '' : `, reading ${Math.floor(100 * this.log.share)} %`;
    element('clock').textContent = `${this.time.toFixed(2)} of ${this.log.lastTime.toFixed(2)} s${reading}, #${frame}`;
    const progress = element('reading');
    progress.hidden = this.log.isWhole;
    progress.value = this.log.share;
    element('play').textContent = this.isPlaying ? 'Pause' : 'Play';
    element('play').setAttribute('aria-label', this.isPlaying ? 'Pause' : 'Play');
  }
}
