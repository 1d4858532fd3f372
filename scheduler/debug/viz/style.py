"""The CSS and JavaScript of the VIZ page. They are inlined, so the page loads no other files."""

STYLE = """
:root { color-scheme: light dark;
  --ink: #1a202c; --soft: #5a6577; --rule: #dde2e9; --paper: #fff; --shade: #f5f7fa;
  --contract: #1d4ed8; --reduce: #b45309; --map: #0f766e; --other: #6b7280; --up: #15803d;
  --down: #b91c1c; --edge: #9aa5b4; --live: #1a202c; --mono: ui-monospace, "DejaVu Sans Mono",
  Menlo, monospace; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --soft: #9aa7b8; --rule: #333c49;
  --paper: #151a21; --shade: #1d242d; --contract: #6ea0ff; --reduce: #f0a75a; --map: #4fc3b5;
  --other: #9ca3af; --up: #5fd08a; --down: #f28b82; --edge: #64748b; --live: #fff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
main { max-width: 1880px; margin: 0 auto; padding: 24px 24px 60px; }
h1 { font-size: 25px; line-height: 1.2; margin: 0; }
h2 { font-size: 17px; margin: 32px 0 8px; }
p { margin: 4px 0 8px; color: var(--soft); max-width: 85ch; }
.lead { font-size: 19px; line-height: 1.4; color: var(--ink); margin: 8px 0; }
nav { display: flex; flex-wrap: wrap; gap: 6px; margin: 14px 0 0; }
nav button { font: inherit; color: inherit; background: var(--shade); cursor: pointer;
  border: 1px solid var(--rule); border-radius: 4px; padding: 3px 10px; }
nav button.on { background: var(--ink); color: var(--paper); border-color: var(--ink); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr));
  margin: 18px 0 0; border-top: 2px solid var(--ink); border-bottom: 1px solid var(--rule); }
.tile { padding: 10px 10px 8px 0; } .tile span { display: block; color: var(--soft); }
.tile b { font-size: 22px; font-weight: 500; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th { font-weight: 500; color: var(--soft); }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.counts th:not(:first-child) { text-align: right; min-width: 90px; }
.total td { font-weight: 600; }
.counts i { font-style: normal; margin-right: 10px; font-size: 12px; font-weight: 400; }
.up { color: var(--up); } .down { color: var(--down); } .re { color: var(--reduce); }
p b { font-weight: 500; }
.passes { display: grid; grid-template-columns: fit-content(58%) minmax(0, 1fr); gap: 0 32px; }
.across { overflow-x: auto; }
.free { white-space: normal; min-width: 11em; }
.wide { overflow: auto; max-height: 460px; border-bottom: 1px solid var(--rule); }
.wide thead th { position: sticky; top: 0; background: var(--paper); z-index: 1; }
.table { font-size: 12.5px; }
.table tbody tr { cursor: pointer; }
.table tbody tr:hover { background: var(--shade); } tr.sel { background: var(--shade); }
.cell { display: inline-block; height: 8px; margin-left: 8px; background: var(--edge);
  vertical-align: middle; }
.gauge { display: inline-block; width: 50px; text-align: left; }
details, .same { margin: 4px 0; } summary { cursor: pointer; } .same { padding-left: 15px; }
summary span, .same span { color: var(--soft); margin-left: 8px; }
details details { margin-left: 15px; color: var(--soft); }
pre { margin: 0; padding: 6px 10px; font: 12px/16px var(--mono); background: var(--shade);
  overflow: auto; }
pre.ir { content-visibility: auto; padding: 0 10px; overflow: auto hidden; }
ins { text-decoration: none; color: var(--up); } ins.re { color: var(--reduce); }
.split { display: grid; grid-template-columns: fit-content(62%) minmax(470px, 1fr); gap: 16px; }
.pane { height: min(760px, 75vh); overflow: auto; border: 1px solid var(--rule);
  border-radius: 4px; }
.pane.detail { padding: 10px 14px; }
.detail pre { margin: 6px 0 12px; padding: 8px 10px; } .detail h3 { margin: 0; font-size: 14px;
  font-family: var(--mono); overflow-wrap: anywhere; }
.detail dl { display: grid; grid-template-columns: 70px minmax(0, 1fr); gap: 2px 10px;
  margin: 8px 0; font-size: 13px; }
.detail dt { color: var(--soft); } .detail dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 1100px) { .split, .passes { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 800px) { main { padding: 20px 14px 40px; } .memory { min-width: 760px; }
  .pane { height: min(760px, 60vh); } }
.keys span { white-space: nowrap; }
.key { display: inline-block; width: 10px; height: 10px; margin: 0 5px 0 12px; }
svg { display: block; } svg text { font-size: 11.5px; fill: var(--ink); }
svg .soft, svg .tick { fill: var(--soft); } svg .name { font-weight: 600; }
.port .box { fill: var(--shade); } .port:hover .box { stroke: var(--ink); }
.k { cursor: pointer; outline: none; } .box { fill: var(--paper); stroke: var(--rule); }
.k:hover .box, .k:focus .box { stroke: var(--ink); } .k.sel .box { fill: var(--shade);
  stroke: var(--ink); stroke-width: 2; }
.contract { --kind: var(--contract); } .reduce { --kind: var(--reduce); }
.map { --kind: var(--map); } .other { --kind: var(--other); }
.stripe, .bar { fill: var(--kind); } .key { background: var(--kind); } .bar { opacity: 0.55; }
.e { fill: none; stroke: var(--edge); stroke-width: 1.2; } .e.order { stroke-dasharray: 3 3; }
.e.hot { stroke: var(--down); stroke-width: 2.2; } .graph.on .e:not(.hot) { opacity: 0.25; }
.memory { width: 100%; height: auto; max-width: 1400px; } .grid { stroke: var(--rule); }
.m { stroke: var(--paper); stroke-width: 0.5; cursor: pointer; } .m:hover, .m.sel {
  stroke: var(--ink); stroke-width: 1.5; }
svg .ml { fill: #1a202c; pointer-events: none; } .live { fill: none; stroke: var(--live);
  stroke-width: 1.4; stroke-dasharray: 4 2; pointer-events: none; }
"""

SCRIPT = """
"use strict";
// A hidden section cannot be scrolled, so an entry selects its costliest kernel when it is shown.
function begin(section) {
  if (!section.querySelector(".sel")) { section.dispatchEvent(new Event("begin")); }
}
document.querySelectorAll("nav button").forEach(function (button) {
  button.addEventListener("click", function () {
    document.querySelectorAll("nav button").forEach(function (b) {
      b.classList.toggle("on", b === button);
      document.getElementById(b.dataset.entry).hidden = b !== button;
    });
    begin(document.getElementById(button.dataset.entry));
  });
});
document.querySelectorAll("section").forEach(function (section) {
  var graph = section.querySelector(".graph");
  var detail = section.querySelector(".detail");
  var edges = {};
  section.querySelectorAll(".e").forEach(function (edge) {
    [edge.dataset.a, edge.dataset.b].forEach(function (k) {
      (edges[k] = edges[k] || []).push(edge);
    });
  });
  function light(k, on) {
    if (graph) { graph.classList.toggle("on", on); }
    (edges[k] || []).forEach(function (edge) { edge.classList.toggle("hot", on); });
  }
  function show(k) {
    var from = document.getElementById(section.id + "-" + k);
    if (!from || !detail) { return; }
    detail.replaceChildren(from.content.cloneNode(true));
    var text = document.getElementById("source-" + from.dataset.kernel);
    if (text) { detail.appendChild(text.content.cloneNode(true)); }
    detail.scrollTop = 0;
    section.querySelectorAll(".sel").forEach(function (e) { e.classList.remove("sel"); });
    section.querySelectorAll('[data-k="' + k + '"]').forEach(function (e) {
      e.classList.add("sel");
      if (e.classList.contains("k")) { keep(e); }
    });
  }
  function keep(box) {
    var pane = graph.parentNode;
    var at = box.getBoundingClientRect(), view = pane.getBoundingClientRect();
    if (at.top < view.top || at.bottom > view.bottom) {
      pane.scrollTop += at.top - view.top - view.height / 2;
    }
    if (at.right > view.right) {
      pane.scrollLeft += Math.min(at.right - view.right, at.left - view.left) + 8;
    }
  }
  section.addEventListener("mouseover", function (event) {
    var box = event.target.closest(".k, .port");
    if (box) { light(box.dataset.k, true); }
  });
  section.addEventListener("mouseout", function (event) {
    var box = event.target.closest(".k, .port");
    if (box) { light(box.dataset.k, false); }
  });
  section.addEventListener("focusin", function (event) {
    var box = event.target.closest(".k");
    if (box) { show(box.dataset.k); }
  });
  section.addEventListener("click", function (event) {
    var one = event.target.closest("[data-k]");
    if (one) { show(one.dataset.k); }
  });
  section.addEventListener("begin", function () { show(section.dataset.first); });
  if (!section.hidden) { begin(section); }
});
"""
