// What keys do; the page lists them.

const element = id => document.getElementById(id);

// Where a key already means something: text, a choice, and Space on a button.
function isTaken(target, key) {
  if (target.matches('input[type="text"], input[type="search"], input[type="number"], select')) return true;
  if (target.matches('input[type="checkbox"]')) return key === ' ';
  if (target.matches('button, a')) return key === ' ' || key === 'Enter';
  // The slider itself moves by a row with arrows, to its ends with Home and End.
  return false;
}

export function bindKeys(actions) {
  const inLog = act => () => {
    const timeline = actions.timeline();
    if (timeline) act(timeline);
    return timeline !== null;
  };
  const keys = {
    ' ': () => { actions.play(); return true; },
    ArrowLeft: inLog(timeline => timeline.step(-1)),
    ArrowRight: inLog(timeline => timeline.step(1)),
    'Shift+ArrowLeft': inLog(timeline => timeline.skip(-1)),
    'Shift+ArrowRight': inLog(timeline => timeline.skip(1)),
    Home: inLog(timeline => timeline.move(0)),
    End: inLog(timeline => timeline.move(timeline.end)),
    '+': inLog(timeline => timeline.faster(1)),
    '-': inLog(timeline => timeline.faster(-1)),
    n: inLog(() => actions.difference(1)),
    p: inLog(() => actions.difference(-1)),
    '/': () => { element('search').focus(); return true; },
    g: inLog(() => { element('place').focus(); element('place').select(); }),
    c: () => { actions.camera(); return true; },
    o: () => { actions.drawing(); return true; },
    '?': () => { actions.help(); return true; },
  };
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.altKey || event.metaKey || isTaken(event.target, event.key)) return;
    const isShifted = event.shiftKey && event.key.startsWith('Arrow');
    const act = keys[isShifted ? `Shift+${event.key}` : event.key];
    // What is done here is not done by the browser, too: the slider, the page's own scrolling.
    if (act?.()) event.preventDefault();
  });
  element('place').addEventListener('keydown', event => {
    if (event.key === 'Escape') element('place').blur();
  });
}
