"""Contrast of texts and curves with their background, as WCAG 2.2 defines it: AA requires 4.5 for text, 3 for lines."""

from typing import Any

from playwright.sync_api import Page

AA_TEXT, AA_LINE = 4.5, 3.0
SCRIPT = """() => {
  const context = Object.assign(document.createElement("canvas"), {width: 1, height: 1})
    .getContext("2d", {willReadFrequently: true});
  const parse = (color) => {  // any notation of CSS
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return {rgb: [r, g, b], alpha: a / 255};
  };
  const over = (top, below) => top.rgb.map((c, i) => top.alpha * c + (1 - top.alpha) * below[i]);
  const light = (rgb) => rgb.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const background = (one) => one
    ? over(parse(getComputedStyle(one).backgroundColor), background(one.parentElement)) : [255, 255, 255];
  const ratio = (color, below) => {
    const [a, b] = [light(over(parse(color), below)), light(below)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const texts = [...document.querySelectorAll("body *:not(script, noscript, title)")]
    .filter((one) => (hasText(one) || one.matches("textarea, input")) && one.checkVisibility() && !one.disabled)
    .map((one) => [
      ratio(getComputedStyle(one)[one instanceof SVGElement ? "fill" : "color"], background(one)),
      `${one.tagName} ${one.textContent.trim().slice(0, 40)}`,
    ]);
  for (const one of document.querySelectorAll("[placeholder]"))
    texts.push([ratio(getComputedStyle(one, "::placeholder").color, background(one)), `placeholder of ${one.id}`]);
  const body = background(document.body);
  const curves = [...document.querySelectorAll(".curve path")].map((path) => getComputedStyle(path).stroke);
  return {texts, curves: [...new Set(curves)], lines: curves.map((color) => ratio(color, body)), page: light(body)};
}"""


def contrast(page: Page) -> dict[str, Any]:
    """Return the contrast of each text, the colors and contrast of curves, and the lightness of the page (0 to 1)."""
    found: dict[str, Any] = page.evaluate(SCRIPT)
    return found


def check_contrast(page: Page, is_dark: bool, min_texts: int) -> None:
    """Fail if visible text has less contrast than AA requires, or if the page does not match `is_dark`."""
    found = contrast(page)
    assert (found["page"] < 0.1) == is_dark
    assert len(found["texts"]) >= min_texts
    assert [text for text in found["texts"] if text[0] < AA_TEXT] == []
    assert [line for line in found["lines"] if line < AA_LINE] == []
