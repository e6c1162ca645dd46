"""The page of a comparison: the results of a sweep as Markdown tables, with pictures in between."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from coop.report.results import Cell, Difference, Results


def page(results: Results, pictures: dict[str, str], settings: str) -> str:
    """`pictures`: file names without suffix, for overhead, fragmentation, search, ablation and
    lowest."""
    parts = ["# Policies compared\n", f"Made by `coop compare` from the JSON beside it. {settings}\n"]

    def section(title: str, picture: str, *texts: str) -> None:
        parts.append(f"\n## {title}\n")
        if picture in pictures:
            parts.append(f"![{title}]({pictures[picture]}.svg)\n")
        parts.extend(texts)

    section("Overhead against memory ratio", "overhead", how_to_read(results), overhead(results))
    if len(results.variants) > 1:
        section(f"{results.variants[0]} against the others", "", against(results))
    section("Fragmentation", "fragmentation", fragmentation(results))
    section("Search", "search", search(results))
    if results.ablated:
        section("Ablation", "ablation", ablation(results))
    if results.with_lowest:
        section("Lowest ratio reached", "lowest", lowest(results))
    return "\n".join(parts)


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    out = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*out, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def points(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"


def how_to_read(results: Results) -> str:
    if not results.distance:
        return "Time in ops, recomputation, moves and waiting for transfers included, over time in ops without a limit, less 1. -: does not run.\n"
    return (
        "Time in ops, recomputation, moves and waiting for transfers included, over time in ops without a limit, less 1; the mean of three ratios, "
        f"{results.distance:g} apart. (n of 3): only n of them run, and the mean is over those. -: none runs.\n"
    )


def overhead(results: Results) -> str:
    def show(cell: Cell) -> str:
        if not cell.answers or not cell.ran:
            return "-"
        return percent(cell.overhead) + ("" if cell.complete else f" ({len(cell.ran)} of {len(cell.answers)})")

    lines = [
        [network if variant == results.variants[0] else "", variant, *map(show, results.cells(network, variant))]
        for network in results.networks
        for variant in results.variants
    ]
    return table(["network", "policy", *(f"{ratio:g}" for ratio in results.ratios)], lines)


def against(results: Results) -> str:
    first = results.variants[0]

    def line(name: str, gap: Difference) -> list[str]:
        at = f" ({gap.worst_at[0]} at {gap.worst_at[1]:g})" if gap.worst_at else ""
        counts = [str(gap.compared), str(gap.only_first), str(gap.only_second)]
        return [name, points(gap.mean), points(gap.worst) + at, *counts]

    lines = [line(other, results.difference(first, other)) for other in results.variants[1:]]
    columns = ["policy", "mean", f"where {first} is worst", "compared", f"only {first} runs", "only the other runs"]
    return f"Overhead of {first} less that of the other, in points; below 0, {first} is better.\n\n" + table(
        columns, lines
    )


def fragmentation(results: Results) -> str:
    def show(network: str, variant: str) -> str:
        both = (results.over(network, variant, "fragmentation", fold) for fold in (statistics.fmean, max))
        return " / ".join(map(percent, both))

    def everywhere(variant: str) -> str:
        values = [
            answer["fragmentation"]
            for network in results.networks
            for cell in results.cells(network, variant)
            for answer in cell.ran
        ]
        return f"{percent(statistics.fmean(values))} / {percent(max(values))}" if values else "-"

    note = "Free bytes left after a request that forced an eviction, over the budget: mean / largest, over the ratios that run.\n\n"
    return note + _by_network(results, show, everywhere)


def search(results: Results) -> str:
    def show(network: str, variant: str) -> str:
        median, slowest = (results.search_time(network, variant, share) for share in (0.5, 0.99))
        whole = results.over(network, variant, "search_seconds", max)
        if median is None or slowest is None or whole is None:
            return "-"
        return f"{median * 1e6:.1f} / {slowest * 1e6:.1f} / {whole * 1e3:.1f}"

    note = (
        "Microseconds for one search, median / 99th percentile over all ratios that run, and milliseconds of searching in "
        "the run that searched longest.\n\n"
    )
    return note + _by_network(results, show)


def ablation(results: Results) -> str:
    first = results.variants[0]

    def show(variant: str, networks: list[str]) -> str:
        gap = results.difference(variant, first, networks)
        lost = f" ({gap.only_second} fail)" if gap.only_second else ""
        gained = f" ({gap.only_first} saved)" if gap.only_first else ""
        return points(gap.mean) + lost + gained

    lines = [
        [
            variant.partition("+")[2],
            *(show(variant, [network]) for network in results.networks),
            show(variant, results.networks),
        ]
        for variant in results.ablated
    ]
    note = (
        f"Points of overhead added to {first} when one part is off, mean over the ratios that run with and without it. fail: "
        "ratios that run only with it; saved: only without.\n\n"
    )
    return note + table(["off", *results.networks, "all"], lines)


def lowest(results: Results) -> str:
    lines = [
        [network, percent(results.floor(network)), *(percent(results.lowest(network, v)) for v in results.variants)]
        for network in results.networks
    ]
    note = "Every ratio tried above it runs as well. No policy can go below the floor: sources, and the largest op.\n\n"
    return note + table(["network", "floor", *results.variants], lines)


def _by_network(
    results: Results, show: Callable[[str, str], str], everywhere: Callable[[str], str] | None = None
) -> str:
    lines = [[network, *(show(network, variant) for variant in results.variants)] for network in results.networks]
    if everywhere is not None:
        lines.append(["all", *map(everywhere, results.variants)])
    return table(["network", *results.variants], lines)
