"""What every SVG picture of the chapters has to keep."""

from __future__ import annotations

from xml.etree import ElementTree

from labkit.lab.picture import SvgPicture

SVG = "{http://www.w3.org/2000/svg}"


def root_of(picture: SvgPicture) -> ElementTree.Element:
    """The drawing as Jupyter gets it; checks that it is well formed, carries its words and keeps inside its frame."""
    data, metadata = picture._repr_mimebundle_()
    root = ElementTree.fromstring(data["image/svg+xml"])
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.get("aria-label") == picture.alt == metadata["image/svg+xml"]["alt"]
    assert len(picture.alt) >= 20 and len(data["text/plain"]) >= 20
    check_frame(root)
    return root


def check_frame(root: ElementTree.Element) -> None:
    """No box, line or circle reaches beyond the picture."""
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for shape in root.iter():
        for right, bottom in corners(shape):
            assert -0.01 <= right <= width + 0.01 and -0.01 <= bottom <= height + 0.01, ElementTree.tostring(shape)


def corners(shape: ElementTree.Element) -> list[tuple[float, float]]:
    """Extreme points of a shape; none for what has no place of its own."""
    kind, get = shape.tag.removeprefix(SVG), shape.attrib
    if kind == "rect" and "x" in get:
        x, y, w, h = (float(get[name]) for name in ("x", "y", "width", "height"))
        return [(x, y), (x + w, y + h)]
    if kind == "line":
        return [(float(get["x1"]), float(get["y1"])), (float(get["x2"]), float(get["y2"]))]
    if kind == "circle":
        x, y, r = (float(get[name]) for name in ("cx", "cy", "r"))
        return [(x - r, y - r), (x + r, y + r)]
    return [(float(get["x"]), float(get["y"]))] if kind == "text" and "x" in get else []


def texts(root: ElementTree.Element) -> list[str]:
    """All words that stand in the drawing."""
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def boxes(root: ElementTree.Element, colour: str) -> list[ElementTree.Element]:
    """The rectangles of one colour."""
    return [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill") == colour]
