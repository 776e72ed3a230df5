"""The summary of a fuzz campaign: inputs tried for each format, and what came of them."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, value in report.user_properties
        if name == "fuzz"
    ]
    if lines:
        terminalreporter.section("hostile files")
        head = f"{'format':<22}{'inputs':>8}{'right':>8}{'refused':>9}{'else':>6}{'seconds':>9}"
        for line in [head, *sorted(lines)]:
            terminalreporter.write_line(line)
