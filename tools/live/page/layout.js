// What is shown, saved as a file and loaded from one; the view itself judges a file that is loaded.

const MAX_BYTES = 12288;

const element = id => document.getElementById(id);
const card = name => element({camera: 'camera-card', top: 'top-card'}[name] ?? name);

export class Layout {
  // `fields`: what is chosen; `send(text)` asks the view what a file holds; `changed()` is called after it was applied.
  constructor(fields, send, changed) {
    Object.assign(this, {fields, send, changed});
    element('shown').onchange = event => {
      card(event.target.value).classList.toggle('away', !event.target.checked);
      changed();
    };
    element('save').onclick = () => this.save();
    element('load').onclick = () => element('file').click();
    element('file').onchange = () => this.read(element('file').files[0]);
  }

  boxes() {
    return [...element('shown').querySelectorAll('input')];
  }

  text() {
    const hidden = this.boxes().filter(box => !box.checked).map(box => box.value);
    return `${JSON.stringify({format: 'modeld view layout', version: 1, fields: this.fields.layout(), hidden}, null, 2)}\n`;
  }

  save() {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([this.text()], {type: 'application/json'}));
    link.download = 'layout.json';
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    this.say('Saved as layout.json; modeld view --layout FILE begins with it.');
  }

  async read(file) {
    element('file').value = '';
    if (!file) return;
    if (file.size > MAX_BYTES) this.say(`${file.name} is no layout: expected at most ${MAX_BYTES} bytes, found ${file.size}.`);
    else this.send(await file.text());
  }

  // What the view says of a file.
  take({layout, error}) {
    if (error) this.say(`This file is no layout: ${error}.`);
    else {
      this.apply(layout);
      this.say('Loaded.');
    }
  }

  apply(layout) {
    for (const box of this.boxes()) {
      box.checked = !layout.hidden.includes(box.value);
      card(box.value).classList.toggle('away', !box.checked);
    }
    this.fields.set(layout.fields);
    this.changed();
  }

  say(text) {
    element('layout-note').textContent = text;
  }
}
