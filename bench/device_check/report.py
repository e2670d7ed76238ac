"""The table at the end."""

from typing import Any


def table(report: dict[str, Any]) -> list[str]:
    """Lines: what failed or was left out, each kernel, the engine's figures."""
    lines = [f"{report['device']}, torch {report['torch']}, Triton {report['triton']}, seed {report['seed']}"]
    if report["dry_run"]:
        lines.append("dry run in Triton's interpreter on the CPU: no time below means anything")
    lines += ["", f"{'kernel':<44} {'':<6} {'error':>9} {'us':>10} {'floor us':>10} {'share':>6}"]
    engine: list[str] = []
    problems: list[str] = []
    for name, part in report["parts"].items():
        if part["status"] != "ok":
            problems.append(f"{name}: {part['status']} {_last_line(part.get('error', ''))}")
        for case, figures in part.get("result", {}).items():
            if "errors" in figures:
                lines.append(_kernel_line(case if "assembler" not in name else f"{case} [{name}]", figures))
            elif name.startswith("engine"):
                engine.append(f"{name.removeprefix('engine: '):<26} {case:<12} {_figures(figures)}")
            else:
                engine.append(f"{name:<26} {case:<20} {_figures(figures)}")
    for case, figures in report.get("assemblers", {}).items():
        same = "the same bytes" if figures["same_bytes"] else "other bytes"
        engine.append(f"{'assemblers':<26} {case}: {same}, {'right' if figures['right'] else 'WRONG'}")
    return [*lines, "", *engine, "", *problems, _verdict(report, problems)]


def is_good(report: dict[str, Any]) -> bool:
    """Whether all that ran is right and nothing failed or hung.

    What was left out is no fault, nor is an assembler that is too old for what Triton writes.
    """
    results = [case for part in report["parts"].values() for case in part.get("result", {}).values()]
    return all(case.get("right", True) for case in results) and all(
        part["status"] in ("ok", "left out")
        for name, part in report["parts"].items()
        if "assembler" not in name
    )


def _kernel_line(name: str, figures: dict[str, Any]) -> str:
    error = max(figures["errors"].values())
    return (
        f"{name:<44} {'right' if figures['right'] else 'WRONG':<6} {error:>9.1e} {figures['seconds'] * 1e6:>10.1f} "
        f"{figures['floor_seconds'] * 1e6:>10.1f} {figures['floor_share']:>6.2f}"
    )


def _figures(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in figures.items()
    )


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


def _verdict(report: dict[str, Any], problems: list[str]) -> str:
    word = "all right" if is_good(report) else "NOT all right"
    return f"{word}, {len(problems)} parts without a result, {report['seconds']:.0f} s"
