"""The style sheet of the reports: light or dark as the reader prefers, readable when printed."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a202c; --soft: #5a6577;
  --rule: #dde2e9; --grid: #eceff3; --axis: #98a2b3; --accent: #1d4ed8; --good: #166534;
  --bad: #b91c1c; --unsure: #92400e; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #12161d; --ink: #e6eaf0; --soft: #a3adbd; --rule: #2f3845; --grid: #232b36;
    --axis: #6b7789; --accent: #7aa2ff; --good: #4ade80; --bad: #f87171; --unsure: #fbbf24; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
main { max-width: min(1560px, 100%); margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 34px 0 2px; }
h3 { font-size: 14px; font-weight: 600; margin: 6px 0 0; }
/* A line of text holds about 90 letters, however wide the window is. */
p { margin: 0 0 10px; color: var(--soft); max-width: 76ch; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, monospace; color: var(--ink);
  overflow-wrap: anywhere; }
.lead { font-size: 19px; line-height: 1.4; color: var(--ink); margin: 8px 0 6px; }
.lead.good { color: var(--good); } .lead code { font-size: 0.85em; }
.good { color: var(--good); } .bad, .warning { color: var(--bad); font-weight: 600; }
.unsure { color: var(--unsure); font-weight: 600; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--accent); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr));
  margin: 20px 0 0; border-top: 2px solid var(--ink); border-bottom: 1px solid var(--rule); }
.tile { padding: 12px 10px 10px 0; }
.tile span { display: block; }
.tile .name, .tile .note { color: var(--soft); font-size: 13px; min-height: 19px; }
.tile .value { font-size: 25px; line-height: 1.25; font-variant-numeric: tabular-nums; }
svg, video, img { display: block; width: 100%; height: auto; }
figure { margin: 0; }
.panel { display: grid; grid-template-columns: minmax(0, 1fr) 330px; gap: 0 18px; margin: 0 0 22px;
  align-items: start; }
.panel .road svg { border-radius: 3px; }
.panel figcaption { grid-column: 1; color: var(--soft); font-size: 13px; padding-top: 4px;
  font-variant-numeric: tabular-nums; }
.row { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 16px; }
.row.four { grid-template-columns: repeat(4, minmax(0, 1fr)); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; margin-top: 6px; }
th, td { text-align: left; vertical-align: top; padding: 4px 24px 4px 0;
  border-bottom: 1px solid var(--rule); }
th { font-weight: 500; color: var(--soft); white-space: nowrap; }
td.number { white-space: nowrap; text-align: right; font-variant-numeric: tabular-nums; }
th.number { text-align: right; }
td.long { overflow-wrap: anywhere; max-width: 76ch; }
td.best { font-weight: 600; color: var(--good); }
.keys span { white-space: nowrap; }
.key { display: inline-block; width: 18px; height: 9px; margin: 0 5px 0 10px; border-radius: 2px; }
.path-key { background: #22c55e; margin-left: 0; } .lane-key { background: #38bdf8; }
.edge-key { background: #ef4444; } .true-key { background: #f59e0b; height: 3px; }
.plan-key { background: #16a34a; margin: 0 2px; }
.car-key { background: #94a3b8; margin: 0 2px; }
.path { fill: #22c55e; } .lane { fill: #38bdf8; } .edge { fill: #ef4444; }
.true, .chart .true { fill: none; stroke: #f59e0b; stroke-width: 2.5; stroke-dasharray: 9 6; }
.chart .true { stroke-width: 1.2; stroke-dasharray: 5 3; }
.grid { stroke: var(--grid); } .axis { stroke: var(--axis); }
.tick, .label, .level-label { font-size: 12px; fill: var(--soft); }
.level-label { fill: var(--ink); }
.chart path { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.chart .exec-line { stroke: var(--accent); stroke-opacity: 0.5; stroke-width: 1; }
.exec-dot { fill: var(--accent); }
.level-median { stroke: var(--ink); } .level-p99 { stroke: var(--unsure); stroke-dasharray: 5 3; }
.level-budget { stroke: var(--bad); stroke-dasharray: 2 3; }
.chart .drop-line { stroke: var(--bad); }
.chart .top-path { fill: #22c55e; fill-opacity: 0.3; } .chart .top-plan { stroke: #16a34a; }
.chart .top-lane { stroke: #0284c7; } .chart .faint { stroke-opacity: 0.35; }
.chart .top-edge { stroke: #ef4444; stroke-dasharray: 4 3; }
.chart .plan-line { stroke: #16a34a; } .chart .car-line { stroke: #94a3b8; stroke-width: 2.4; }
@media (max-width: 1300px) { .row.four { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 800px) {
  main { padding: 20px 14px 36px; }
  h1 { font-size: 22px; overflow-wrap: anywhere; }
  .panel, .row, .row.four { grid-template-columns: minmax(0, 1fr); }
  .panel .top { max-width: 330px; order: 1; }
  /* Charts of half a page shrink to its width; their letters must not. */
  .pair .tick, .pair .label { font-size: 17px; }
  .wide > svg { min-width: 760px; }
  /* A table that is too wide moves by itself, not the page; no column shrinks to single letters. */
  table { display: block; overflow-x: auto; }
  td:not(.number) { min-width: 6em; }
  .tile .value { font-size: 21px; }
  th, td { padding-right: 14px; } }
@media print { .panel, .tiles { break-inside: avoid; } }
"""
