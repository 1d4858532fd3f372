// The socket to the view: decodes its messages, connects again when it is lost.

const AGAIN_MS = 1000;
const AGAIN_FULL_MS = 5000;
// WebSocket close code "try again later": as many pages as may watch do.
const FULL = 1013;

export class Connection {
  // on.message(json, jpeg) with jpeg a Uint8Array, on.open(), on.lost(reason, isFull).
  constructor(on) {
    this.on = on;
    this.socket = null;
    this.wishes = {};
    this.connect();
  }

  connect() {
    const socket = new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/socket`);
    socket.binaryType = 'arraybuffer';
    this.socket = socket;
    socket.onopen = () => {
      if (Object.keys(this.wishes).length) socket.send(JSON.stringify(this.wishes));
      this.on.open();
    };
    socket.onmessage = event => this.on.message(...decode(event.data));
    socket.onclose = event => {
      const isFull = event.code === FULL;
      this.on.lost(event.reason, isFull);
      setTimeout(() => this.connect(), isFull ? AGAIN_FULL_MS : AGAIN_MS);
    };
  }

  // Ask for something; what was asked for last holds for the next connection, too.
  ask(wish) {
    Object.assign(this.wishes, wish);
    this.tell(wish);
  }

  // Say something that is of this moment only.
  tell(what) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(what));
  }
}

// The length of the text as uint32, little endian; JSON; a JPEG picture or nothing.
function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const text = new TextDecoder().decode(new Uint8Array(buffer, 4, length));
  return [JSON.parse(text), new Uint8Array(buffer, 4 + length)];
}
