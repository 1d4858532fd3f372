"""What the launches of an entry cost: a sentence that leads the page, and the costliest of them."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from runtime.texts import count_text, flops_text, short_origin, size_text
from scheduler.debug.kernel_table import KernelTable
from scheduler.debug.viz.graph import LaunchTimes, time_text

# As many as a reader takes in at a glance; the table of all kernels is below.
COSTLIEST = 5


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of each launch: its measured time, or else its work, or else the bytes it moves."""

    values: tuple[float, ...]  # by number of the launch
    texts: tuple[str, ...]  # the same for people
    name: str  # of the cost, as a column is headed
    total: str  # what all launches do, as a sentence says it

    @property
    def order(self) -> list[int]:
        """The launches, the costliest first."""
        return sorted(range(len(self.values)), key=lambda at: -self.values[at])

    def share(self, launch: int) -> float:
        """Return the part that a launch has of the sum, 0..1."""
        return self.values[launch] / (sum(self.values) or 1.0)

    def in_half(self) -> int:
        """Return how many launches have half of the sum, the costliest first."""
        share, count = 0.0, 0
        for launch in self.order:
            share, count = share + self.share(launch), count + 1
            if share >= 0.5:
                break
        return count


def costs_of(table: KernelTable, times: LaunchTimes | None) -> Costs:
    """Return what is known of an entry's costs, with launch times if they were measured."""
    flops = [launch.flops for launch in table.launches]
    moved = [launch.bytes_moved for launch in table.launches]
    if times is not None:
        texts = tuple(map(time_text, times.milliseconds))
        total = f"take {time_text(times.total)} on {times.where}"
        return Costs(times.milliseconds, texts, "time", total)
    if any(flops):
        total = f"do {flops_text(sum(flops))} and move {size_text(sum(moved))}"
        return Costs(tuple(map(float, flops)), tuple(map(flops_text, flops)), "work", total)
    texts = tuple(map(size_text, moved))
    return Costs(tuple(map(float, moved)), texts, "moved", f"move {size_text(sum(moved))}")


def costs_part(table: KernelTable, times: LaunchTimes | None) -> str:
    """Return the sentence and the costliest launches as HTML; a row leads to its kernel."""
    costs = costs_of(table, times)
    if not costs.values:
        return ""
    count, half = len(costs.values), costs.in_half()
    verb = costs.total if count > 1 else costs.total.replace(" ", "s ", 1)
    said = f"{count_text(count, 'launch', 'launches')} {verb}."
    # Of a few launches the table says as much.
    if count > COSTLIEST:
        said += f" Half of the {_noun(costs)} is in {half} of them."
    rows = "".join(_row(table, costs, launch) for launch in costs.order[:COSTLIEST])
    head = f'<th class="n">{costs.name}</th><th class="n">share</th><th class="n">#</th>'
    return (
        f'<p class="lead">{escape(said)}</p><div class="across"><table class="table"><thead><tr>'
        f"{head}<th>kernel</th><th>nodes</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _noun(costs: Costs) -> str:
    return "traffic" if costs.name == "moved" else costs.name


def _row(table: KernelTable, costs: Costs, number: int) -> str:
    launch = table.launches[number]
    return (
        f'<tr data-k="{number}"><td class="n">{escape(costs.texts[number])}</td>'
        f'<td class="n">{costs.share(number):.1%}</td><td class="n">{number}</td>'
        f"<td>{escape(launch.kernel)}</td><td>{escape(short_origin(launch.origin))}</td></tr>"
    )
