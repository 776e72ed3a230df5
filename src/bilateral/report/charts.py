"""A matplotlib drawing as SVG inside the page: it takes the page's colours, in light and dark.

Names are never drawn. Legends and titles are HTML beside the drawing, where the browser lays out
text of any script and nothing is read as mathematics or markup.
"""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup
from matplotlib import style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

SERIES = 7
"""Number of colours (after Okabe and Ito); further lines repeat them with new dashes and marks."""
MARKS = ("o", "s", "^", "D", "v", "P", "X")
LEGEND_MARKS = (
    '<circle cx="15" cy="5" r="2.6"/>',
    '<rect x="12.6" y="2.6" width="4.8" height="4.8"/>',
    '<polygon points="15,1.8 18,7.6 12,7.6"/>',
    '<polygon points="15,1.4 18.6,5 15,8.6 11.4,5"/>',
    '<polygon points="15,8.2 18,2.4 12,2.4"/>',
    '<polygon points="14,2 16,2 16,4 18,4 18,6 16,6 16,8 14,8 14,6 12,6 12,4 14,4"/>',
    '<polygon points="12.4,3.6 13.6,2.4 15,3.8 16.4,2.4 17.6,3.6 16.2,5 17.6,6.4 16.4,7.6 15,6.2 '
    '13.6,7.6 12.4,6.4 13.8,5"/>',
)
"""The same marks in a legend's swatch of 30 by 10."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1, 1.5), (6, 2, 1, 2))
INK, RULE = "#010203", "#040506"
"""Stand-ins that become the page's own colours."""
LEGIBLE = {"font.size": 11, "axes.labelsize": 11, "xtick.labelsize": 10.5, "ytick.labelsize": 10.5}
"""In units of a drawing 340 wide: on a phone they are pixels, and none is too small to read."""
MARKED = 20
"""A longer line has about this many marks, so that not only its colour tells it apart."""


@dataclass(frozen=True)
class Line:
    """A named series of points; `look` picks colour, dashes and mark."""

    name: str
    points: list[tuple[float, float]]
    look: int
    joined: bool = True
    marked: bool = True


@dataclass(frozen=True)
class Drawing:
    """A figure of the page: its SVG, and in words what it shows."""

    title: str
    svg: Markup
    summary: str
    caption: str = ""
    lines: list[Line] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    wide: bool = False


def colour(look: int) -> str:
    """The stand-in for a series' colour."""
    return f"#0a0b{look % SERIES:02d}"


def dashes(look: int) -> tuple[float, ...]:
    """On and off lengths; none for a solid line."""
    return DASHES[look // SERIES % len(DASHES)]


def mark(look: int) -> int:
    """The number of a series' mark; series of the same colour have different ones."""
    return (look + look // SERIES) % len(MARKS)


def draw_svg(
    paint: Callable[[Any], None],
    salt: str,
    size: tuple[float, float] = (4.7, 3.1),
    projection: str | None = None,
) -> Markup:
    """What `paint` puts on a pair of axes; `salt` keeps the ids of two drawings apart.

    The settings of the user's own matplotlibrc (TeX, say) are not used.
    """
    settings: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": salt, **LEGIBLE}
    with style.context(["default", settings]):
        figure = Figure(figsize=size, layout="constrained")
        figure.patch.set_visible(False)
        axes: Any = figure.add_subplot(projection=projection)
        if projection is None:
            dress(axes)
        paint(axes)
        buffer = io.StringIO()
        FigureCanvasSVG(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Markup(_for_the_page(buffer.getvalue()))


def dress(axes: Any) -> None:
    """Quiet axes in the page's colours."""
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
        spine.set_linewidth(0.7)
    axes.tick_params(colors=INK, width=0.7, length=3)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)


def draw_line(axes: Any, line: Line, percent: bool = False) -> None:
    """A series in its look, without its name."""
    (drawn,) = axes.plot(
        [x for x, _ in line.points],
        [100 * y if percent else y for _, y in line.points],
        color=colour(line.look),
        linewidth=1.6 if line.joined else 0,
        dashes=dashes(line.look) or (None, None),
        marker=MARKS[mark(line.look)],
        markevery=-(-len(line.points) // MARKED) if len(line.points) > 2 * MARKED else 1,
        markersize=(4.5 if len(line.points) <= 12 else 3) + 2.5 * (not line.joined),
        clip_on=False,
        zorder=3,
    )
    drawn.set_in_layout(False)  # a point off the axes would shrink them


def listed(lines: Sequence[Line], across: str, form: Callable[[float], str]) -> Any:
    """The same points as a table: a row per place, a column per line; accuracies in per cent."""
    places = sorted({x for line in lines for x, _ in line.points})
    values = [dict(line.points) for line in lines]
    head = [across, *(line.name for line in lines)]
    return head, [
        [form(x), *(f"{100 * value[x]:.1f}" if x in value else "" for value in values)]
        for x in places
    ]


def _for_the_page(svg: str) -> str:
    """The drawing's element alone, without a size and ids of its own, in the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = svg.replace(INK, "currentColor").replace(RULE, "var(--rule)")
    svg = re.sub(r"#0a0b(\d\d)", lambda found: f"var(--series-{int(found[1])})", svg)
    return re.sub(r"\n\s*", "\n", svg).strip()
