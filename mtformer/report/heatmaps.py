"""Attention heat maps: the weights of a few sentences in the page, and a small script that shows one map at a time."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from torch import Tensor

from mtformer.decoding.attention_maps import AttentionMaps
from mtformer.experiment.runs import RunContents
from mtformer.page import data_script
from mtformer.report.sentences import Sentence

MOST_WORDS = 15
"""Longer sentences are not chosen: their maps are hard to read, and large."""
MOST_SENTENCES = 6
MOST_WEIGHTS = 400_000
"""Of all maps of a page: about a megabyte."""
KINDS = {"cross": "target looks at source", "encoder": "source looks at source", "decoder": "target looks at target"}


def choose(sentences: dict[str, list[Sentence]], run: RunContents) -> list[tuple[str, str, str | None]]:
    """(label, source, target language) of sentences evenly from the best to the worst, or else of dev's samples."""
    chosen: list[tuple[str, str, str | None]] = []
    for name, all_of_set in sentences.items():
        short = [one for one in all_of_set if len(one.source.split()) <= MOST_WORDS and one.source.strip()]
        last = len(short) - 1
        for place in dict.fromkeys(
            round(n * last / (MOST_SENTENCES - 1)) for n in range(MOST_SENTENCES if short else 0)
        ):
            one = short[last - place]
            chosen.append((f"{name}, chrF2++ {one.chrf:.1f}", one.source, one.tgt_lang))
        if chosen:
            break
    if not chosen and run.samples and (run.config is None or not run.config.data.both_directions):
        rows = run.samples[-1]["samples"]
        chosen = [("dev", source, None) for source, _, _ in rows if 0 < len(source.split()) <= MOST_WORDS]
    return chosen[:MOST_SENTENCES]


def maps_of(
    chosen: Sequence[tuple[str, str, str | None]],
    maps: Callable[[str, str | None], AttentionMaps],
    most_weights: int,
) -> list[tuple[str, AttentionMaps]]:
    """The maps of the sentences in turn, as many as hold `most_weights` numbers together, but one at least.

    Args:
        chosen: from `choose`.
        maps: (source, target language) -> its maps.
        most_weights: see above.
    """
    found: list[tuple[str, AttentionMaps]] = []
    rest = most_weights
    for label, source, language in chosen:
        one = maps(source, language)
        rest -= sum(weights.numel() for weights in (one.encoder_LHSS, one.decoder_LHTT, one.cross_LHTS))
        if found and rest < 0:
            break
        found.append((label, one))
    return found


def heatmaps_html(name: str, maps: Iterable[tuple[str, AttentionMaps]]) -> str:
    """The selectors, the place of the map, and its numbers; needs SCRIPT and STYLE in the page.

    Args:
        name: tells the maps of several runs apart.
        maps: with a label for each sentence.
    """
    sentences = [_sentence(label, one) for label, one in maps]
    if not sentences:
        return ""
    kinds = "".join(f'<option value="{kind}">{escape(f"{kind}: {what}")}</option>' for kind, what in KINDS.items())
    texts = "".join(
        f'<option value="{n}">{escape(one["label"] + ": " + one["source"])}</option>' for n, one in enumerate(sentences)
    )
    selectors = [
        ("sentence", "Sentence", texts),
        ("kind", "Attention", kinds),
        ("layer", "Layer", ""),
        ("head", "Head", ""),
    ]
    fields = "".join(
        f'<label class="{key}">{title} <select data-choice="{key}">{options}</select></label>'
        for key, title, options in selectors
    )
    return (
        f'<div class="attention" data-weights="{escape(name)}">\n<div class="choices">{fields}</div>\n'
        '<p class="texts" dir="auto"></p><p class="told" aria-live="polite"></p>\n'
        '<div class="wide map" tabindex="-1"></div>\n'
        "<noscript><p>The maps are drawn by a script of this page, which is switched off.</p></noscript></div>\n"
        + data_script(name, sentences)
    )


def _sentence(label: str, one: AttentionMaps) -> dict[str, Any]:
    keys = {"cross": one.src_pieces, "encoder": one.src_pieces, "decoder": one.decoder_keys}
    queries = {"cross": one.tgt_pieces, "encoder": one.src_pieces, "decoder": one.tgt_pieces}
    weights = {"cross": one.cross_LHTS, "encoder": one.encoder_LHSS, "decoder": one.decoder_LHTT}
    maps = {kind: {"queries": queries[kind], "keys": keys[kind], "weights": _percent(weights[kind])} for kind in KINDS}
    return {
        "label": label, "source": one.source, "translation": one.translation, "maps": maps,
        "layer": one.alignment_layer,
    }  # fmt: skip


def _percent(weights: Tensor) -> list[Any]:
    """Whole percents; of each layer and head the rows behind one another."""
    return (100 * weights.flatten(2)).round().int().tolist()


STYLE = """
.choices { display: flex; flex-wrap: wrap; gap: .5rem 1rem; margin: .75rem 0; }
.choices label { display: grid; gap: .15rem; font-size: .85rem; color: var(--faint); min-width: 0; }
.choices .sentence { flex: 1 1 100%; border: 0; padding: 0; margin: 0; }
select { font: inherit; color: var(--ink); background: var(--soft); border: 1px solid var(--line); border-radius: 4px;
  padding: .3rem .4rem; max-width: 100%; } .choices .sentence select { width: 100%; text-overflow: ellipsis; }
.attention .texts { font-size: .9rem; } .told { min-height: 1.5em; font-size: .9rem; color: var(--faint); }
.map table { border-collapse: separate; border-spacing: 1px; font-size: .8rem; margin-bottom: .5rem; }
.map th, .map td { border: 0; padding: 0; white-space: nowrap; }
.map thead th { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; vertical-align: top;
  padding: .3rem 0; line-height: 1.55rem; height: auto; }
.map tbody th { text-align: right; padding-right: .4rem; position: sticky; left: 0; background: var(--back); z-index: 1;
  vertical-align: middle; }
.map td { width: 1.55rem; min-width: 1.55rem; height: 1.55rem; background: var(--soft); position: relative; }
.map td::before { content: ""; position: absolute; inset: 0; background: var(--bar); opacity: var(--shade); }
.map .corner, .map .corner::before { background: none; }
.map td:focus-visible { outline: 2px solid var(--ink); outline-offset: 0; z-index: 2; }
.map th.on { font-weight: 700; }
"""
SCRIPT = """
for (const place of document.querySelectorAll(".attention")) {
  const sentences = JSON.parse(document.getElementById(place.dataset.weights).textContent);
  const choice = {};
  for (const one of place.querySelectorAll("select")) choice[one.dataset.choice] = one;
  const told = place.querySelector(".told");
  let cells = [];

  const make = (tag, text) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const offer = (select, names, wanted) => {
    select.replaceChildren(...names.map((name, number) => {
      const option = make("option", name);
      option.value = number;
      return option;
    }));
    select.value = Math.min(wanted, names.length - 1);
  };
  const asked = () => sentences[choice.sentence.value].maps[choice.kind.value];
  const offerLayers = () => {
    const wanted = choice.layer.value === "" ? sentences[0].layer : Number(choice.layer.value);
    offer(choice.layer, asked().weights.map((_, number) => String(number + 1)), wanted);
    const heads = asked().weights[0].map((_, number) => String(number + 1));
    offer(choice.head, ["mean of all", ...heads], Number(choice.head.value || 0));
  };
  const weightsOf = (heads, head) => {
    if (head > 0) return heads[head - 1];
    return heads[0].map((_, i) => heads.reduce((sum, weights) => sum + weights[i], 0) / heads.length);
  };

  const draw = () => {
    const sentence = sentences[choice.sentence.value];
    const {queries, keys, weights} = asked();
    const shown = weightsOf(weights[choice.layer.value], Number(choice.head.value));
    const most = Math.max(1, ...shown);
    const row = make("tr");
    row.append(make("td"), ...keys.map((key) => {
      const head = make("th", key);
      head.scope = "col";
      return head;
    }));
    row.firstChild.className = "corner";
    const top = make("thead");
    top.append(row);
    const body = make("tbody");
    cells = queries.map((query, i) => {
      const line = make("tr"), head = make("th", query);
      head.scope = "row";
      const ofLine = keys.map((key, j) => {
        const cell = make("td"), weight = shown[i * keys.length + j];
        cell.style.setProperty("--shade", (weight / most).toFixed(3));
        cell.tabIndex = -1;
        cell.setAttribute("aria-label", `${query} looks at ${key}: ${(weight / 100).toFixed(2)}`);
        cell.dataset.row = i;
        cell.dataset.column = j;
        return cell;
      });
      line.append(head, ...ofLine);
      body.append(line);
      return ofLine;
    });
    const table = make("table"), name = choice.kind.selectedOptions[0].textContent;
    table.setAttribute("aria-label", `${name}, layer ${Number(choice.layer.value) + 1}`);
    table.append(top, body);
    cells[0][0].tabIndex = 0;
    place.querySelector(".map").replaceChildren(table);
    place.querySelector(".texts").textContent = `${sentence.source} \\u2192 ${sentence.translation}`;
    told.textContent = `Rows look at columns; the darkest is ${(most / 100).toFixed(2)}. ` +
      "Point at a cell, or go there with Tab and the arrow keys.";
  };

  const tell = (cell) => {
    if (!cell || cell.dataset.row === undefined) return;
    told.textContent = cell.getAttribute("aria-label");
    for (const head of place.querySelectorAll("th.on")) head.classList.remove("on");
    cell.parentNode.firstChild.classList.add("on");
    place.querySelectorAll("thead th")[cell.dataset.column].classList.add("on");
  };
  const map = place.querySelector(".map");
  map.addEventListener("pointerover", (event) => tell(event.target.closest("td")));
  map.addEventListener("focusin", (event) => tell(event.target.closest("td")));
  map.addEventListener("keydown", (event) => {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    const from = event.target.closest("td");
    if (!step || !from) return;
    const to = (cells[Number(from.dataset.row) + step[0]] || [])[Number(from.dataset.column) + step[1]];
    event.preventDefault();
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
  choice.sentence.addEventListener("change", () => { offerLayers(); draw(); });
  choice.kind.addEventListener("change", () => { offerLayers(); draw(); });
  choice.layer.addEventListener("change", draw);
  choice.head.addEventListener("change", draw);
  offerLayers();
  draw();
}
"""
