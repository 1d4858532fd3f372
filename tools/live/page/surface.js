// Canvases that are as sharp as the screen, and the colours of the style sheet.

const NAMES = ['card', 'ink', 'soft', 'rule', 'grid', 'accent', 'path', 'lane', 'edge', 'lead', 'car', 'plan', 'seen',
  'drop', 'invalid', 'other', 'differ'];

export const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';

let colours = null;

export function theme() {
  if (colours === null) {
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries(NAMES.map(name => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return colours;
}

// Call `changed` when the colours are others.
export function onThemeChange(changed) {
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    colours = null;
    changed();
  });
}

// Return {context, width, height} of a cleared canvas, in CSS pixels; null while it is not shown.
export function surface(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width || !height) return null;
  const ratio = Math.min(devicePixelRatio || 1, 3);
  const columns = Math.round(width * ratio), rows = Math.round(height * ratio);
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns;
    canvas.height = rows;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = 'middle';
  return {context, width, height};
}

export function label(canvas, text) {
  if (canvas.getAttribute('aria-label') !== text) canvas.setAttribute('aria-label', text);
}

// A number for people; "–" where there is none.
export function shown(value, digits = 1, unit = '') {
  if (value === null || value === undefined) return '–';
  return `${value.toFixed(digits).replace('-', '−')}${unit && ` ${unit}`}`;
}
