"""Makes docs/performance.md: `python -m bench.report results.json [plots] > docs/performance.md`.

Every figure comes out of the results; whether a target is met is computed here once more. `plots`
is the folder of the plots, as the page is to link it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.command import number
from bench.result import FORMAT, Measure, Result
from bench.target import ALL, Outcome

_QUICK = (
    "> **These figures mean nothing.** They come from a reduced run, which only shows that the "
    "benchmarks work.\n"
)


def report(whole: Mapping[str, Any], plots: str | None = None) -> str:
    """The page."""
    if whole["format"] != FORMAT:
        raise ValueError(f"results of format {whole['format']}; this makes pages of {FORMAT}")
    results = [Result.from_json(value) for value in whole["benches"]]
    return "\n".join(_page(whole, results, plots)) + "\n"


def _page(whole: Mapping[str, Any], results: Sequence[Result], plots: str | None) -> Iterator[str]:
    yield "# Performance\n"
    if whole["quick"]:
        yield _QUICK
    yield (
        "Made by `python -m bench.report` from the results of `make bench`; no figure is typed in "
        "by hand. All contenders of a table ran side by side on one machine, in turns and several "
        "times; not all tables come from the same one. Ratios are what to look at.\n"
    )
    yield "## Targets\n"
    yield from _targets(results)
    yield "\n## Versions\n"
    yield from _pairs("", whole["versions"])
    for name in whole["failed"]:
        yield f"\n**`bench.{name}` failed and is missing here.**"
    for result in results:
        yield from _section(result, plots)


def _targets(results: Sequence[Result]) -> Iterator[str]:
    outcomes = [outcome for result in results for outcome in result.outcomes]
    yield "| what | at least | aim | measured | |"
    yield "|---|---|---|---|---|"
    for target in ALL:
        found = [outcome for outcome in outcomes if outcome.target.what == target.what]
        for outcome in found:
            yield _target_row(outcome)
        if not found:
            yield (
                f"| {_cell(target.what)} | {target.wording(target.bound)} "
                f"| {target.wording(target.aim)} | not measured | |"
            )


def _target_row(outcome: Outcome) -> str:
    target = outcome.target
    what = f"{target.what}, {outcome.detail}" if outcome.detail else target.what
    unit = f" {target.unit}" if target.unit else ""
    return (
        f"| {_cell(what)} | {target.wording(target.bound)} | {target.wording(target.aim)} "
        f"| {outcome.value:.4g}{unit} | {outcome.verdict} |"
    )


def _section(result: Result, plots: str | None) -> Iterator[str]:
    yield f"\n## {result.title}\n"
    yield f"{result.fairness}\n"
    sizes = ", ".join(f"{name} {_value(value)}" for name, value in result.sizes.items())
    yield (
        f"`python -m bench.{result.bench}`: {sizes}. It took {result.seconds:.0f} s on "
        f"{result.date}, with {result.commit}, on {result.machine}, whose load before it was "
        f"{result.load:.1f}.\n"
    )
    for note in result.notes:
        yield f"**Note:** {note}\n"
    if plots is not None:
        yield f"![{result.title}]({plots}/{result.bench}.svg)\n"
    for group in dict.fromkeys(measure.group for measure in result.measures):
        panel = [measure for measure in result.measures if measure.group == group]
        yield f"**{group}**, {panel[0].unit}\n"
        yield "| | median | quartiles | p99 | n |"
        yield "|---|---|---|---|---|"
        for measure in panel:
            yield (
                f"| {_cell(measure.name)} | {number(measure.median)} "
                f"| {number(measure.lower)} to {number(measure.upper)} "
                f"| {number(measure.p99)} | {measure.n} |"
            )
        yield ""
    yield from _settings(result.measures)


def _settings(measures: Sequence[Measure]) -> Iterator[str]:
    found = {measure.name: measure.settings for measure in measures if measure.settings}
    if not found:
        return
    yield "| settings of | |"
    yield "|---|---|"
    for name, settings in found.items():
        text = ", ".join(f"`{key}={value}`" for key, value in settings.items())
        yield f"| {_cell(name)} | {_cell(text)} |"


def _pairs(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield f"| {title} | |"
    yield "|---|---|"
    for name, value in values.items():
        yield f"| {_cell(name)} | {_cell(str(value))} |"


def _value(value: object) -> str:
    if isinstance(value, list):
        return " and ".join(map(_value, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="what `python -m bench --json` wrote")
    parser.add_argument("plots", nargs="?", help="the folder of the plots, relative to the page")
    options = parser.parse_args()
    print(report(json.loads(options.results.read_text()), options.plots), end="")


if __name__ == "__main__":
    main()
