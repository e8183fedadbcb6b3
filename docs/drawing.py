"""Parts of pictures that are drawn without a library, the same to the byte wherever that is done.

Each picture has a light and a dark look and takes the one that its reader prefers.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

WIDTH = 760
# Light, then dark: the ground, texts, lines, boxes, rankspawn's colour and its peer's; then those
# of other peers, where there are several.
_LOOKS = (
    [
        "#ffffff",
        "#1f2328",
        "#59636e",
        "#eef1f4",
        "#c0392b",
        "#9a6200",
        "#1f6fb2",
        "#7d3c98",
        "#117a65",
        "#5d6d7e",
    ],
    [
        "#15191f",
        "#e6edf3",
        "#9aa5b1",
        "#262d36",
        "#ff7b6b",
        "#f0b13a",
        "#6cb6ff",
        "#d2a8ff",
        "#56d4b0",
        "#b0bac5",
    ],
)
_STYLE = """
text {{ font-family: sans-serif; font-size: 14px; fill: {1}; }}
.ground {{ fill: {0}; }} .faint {{ fill: {2}; font-size: 13px; }} .title {{ font-weight: bold; }}
.box {{ fill: {3}; stroke: {2}; }} .cell {{ fill: {0}; stroke: {2}; }}
.line {{ stroke: {2}; fill: none; }} .head {{ fill: {2}; }} .grid {{ stroke: {3}; }}
.own {{ fill: {4}; stroke: {4}; }} .shared {{ fill: {0}; stroke: {4}; stroke-width: 2; }}
.peer {{ fill: {5}; stroke: {5}; }} .strong {{ fill: {4}; stroke: none; }}
"""
_SEVERAL = """.curve {{ fill: none; stroke-width: 1.6; }} .thick {{ stroke-width: 3; }}
.own.curve, .peer.curve {{ fill: none; }}
.blue {{ stroke: {6}; fill: {6}; }} .violet {{ stroke: {7}; fill: {7}; }}
.green {{ stroke: {8}; fill: {8}; }} .grey {{ stroke: {9}; fill: {9}; }}
.blue.curve, .violet.curve, .green.curve, .grey.curve {{ fill: none; }}
"""


def picture(height: float, title: str, parts: Iterable[str], *, several: bool = False) -> str:
    """A whole file; ``several`` if there are curves of several peers in it."""
    light, dark = ((_STYLE + _SEVERAL * several).format(*look) for look in _LOOKS)
    style = f"{light}@media (prefers-color-scheme: dark) {{{dark}}}\n"
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path class="head" d="M0,0 L9,4 L0,8 z"/></marker></defs>',
        f'<rect class="ground" width="{WIDTH}" height="{height:g}"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words, at their baseline."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """A box with round corners."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {place} rx="5"/>'


def arrow(x: float, y: float, to_x: float, to_y: float, both: bool = False) -> str:
    """A line with a tip, or with two."""
    tips = ' marker-end="url(#tip)"'
    line = f'<path class="line" d="M{x:.1f},{y:.1f} L{to_x:.1f},{to_y:.1f}"{tips}/>'
    return line + (arrow(to_x, to_y, x, y) if both else "")
