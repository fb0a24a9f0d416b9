"use strict";
const settings = JSON.parse(document.getElementById("settings").textContent);
const at = id => document.getElementById(id);
const PAUSE = 300; // milliseconds without a key press after which the text is translated
let running = null, timer = null;
let answer = [], answered = null; // chosen translation of each line, and the source text

function make(tag, kind, text) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Put a span for each text into an element; leading spaces stay outside the spans.
function spansOf(texts, kind, place) {
  const spans = texts.map(text => make("span", kind, text.trim()));
  place.replaceChildren(...spans.flatMap((span, number) =>
    number && texts[number].startsWith(" ") ? [" ", span] : [span]));
  return spans;
}

function offerTargets() {
  const kept = at("target").value;
  const targets = settings.targets[at("source").value];
  at("target").replaceChildren(...targets.map(code => new Option(settings.names[code], code)));
  if (targets.includes(kept)) at("target").value = kept;
  offerSwap();
}

function translates(source, target) { return (settings.targets[source] || []).includes(target); }

function offerSwap() { at("swap").disabled = !translates(at("target").value, at("source").value); }

function swap() {
  const source = at("source").value;
  at("source").value = at("target").value;
  offerTargets();
  at("target").value = source;
  offerSwap();
  if (answered === at("text").value) at("text").value = answer.join("\n");
  count();
  translate();
}

async function copy() {
  const text = answer.join("\n");
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else { // navigator.clipboard needs https or localhost
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  at("copy").textContent = "Copied";
  setTimeout(() => { at("copy").textContent = "Copy"; }, 1500);
}

function report(message) { at("message").textContent = message; }

function count() {
  const used = [...at("text").value].length;
  at("count").textContent = `${used.toLocaleString("en")} / ${settings.characters.toLocaleString("en")}`;
  at("count").classList.toggle("bad", used > settings.characters);
}

async function refused(response) {
  const answer = await response.json().catch(() => ({}));
  if (response.status === 403 && settings.keyed) {
    at("key-row").hidden = false;
    at("key").focus();
    return at("key").value ? "The API key is wrong." : "This server requires an API key.";
  }
  return answer.error || `The server returned status ${response.status}.`;
}

async function translate() {
  clearTimeout(timer);
  if (running) running.abort();
  const text = at("text").value;
  report("");
  if (!text.trim()) {
    running = null;
    at("result").replaceChildren();
    at("result").removeAttribute("aria-busy");
    at("actions").hidden = at("hint").hidden = true;
    return;
  }
  const mine = running = new AbortController();
  answered = null; // until the answer arrives, the languages differ from those of the last one
  at("result").setAttribute("aria-busy", "true");
  const request = { q: text, source: at("source").value, target: at("target").value,
    alternatives: settings.alternatives, api_key: at("key").value };
  try {
    const response = await fetch("words", { method: "POST", signal: mine.signal,
      headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) });
    if (!response.ok) { const why = await refused(response); if (mine === running) report(why); return; }
    if (settings.keyed) { at("key-row").hidden = true; sessionStorage.setItem("key", at("key").value); }
    const { lines, warnings } = await response.json();
    if (mine === running) { show(lines, text); report(warnings.join(" ")); }
  } catch (error) {
    if (error.name !== "AbortError") report("The server does not answer; is it still running?");
  } finally {
    if (mine === running) { running = null; at("result").removeAttribute("aria-busy"); }
  }
}

function show(lines, text) {
  answer = lines.map(() => "");
  answered = text;
  at("result").replaceChildren(...lines.map(showLine));
  at("actions").hidden = at("hint").hidden = !lines.some(line => line.source.length);
  const hypotheses = lines.flatMap(line => line.source.length ? line.hypotheses : []);
  at("confidence-hint").hidden = hypotheses.every(one => one.confidence === null);
}

function showLine(line, position) {
  const box = make("div", "line");
  const translation = make("p", "translation"), source = make("p", "source"), list = make("ol", "n-best");
  translation.dir = source.dir = "auto";
  translation.lang = at("target").value;
  source.lang = at("source").value;
  const pieces = spansOf(line.source, "piece", source);
  const buttons = line.hypotheses.map((one, number) => {
    const button = make("button");
    button.type = "button";
    const text = make("span", "text", one.text);
    text.dir = "auto";
    button.append(make("span", "score", one.score.toFixed(3)), text);
    if (one.confidence !== null) {
      const isLow = one.flags.includes("low confidence");
      button.append(make("span", isLow ? "confidence low" : "confidence", `${Math.round(100 * one.confidence)}% sure`));
    }
    if (one.flags.length) button.append(make("span", "flags", one.flags.join(", ")));
    button.addEventListener("click", () => choose(number));
    return button;
  });
  function choose(number) {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", other === number));
    answer[position] = line.hypotheses[number].text;
    showWords(translation, pieces, line.hypotheses[number].words);
  }
  box.append(translation);
  if (line.source.length) {
    list.append(...buttons.map(button => { const item = make("li"); item.append(button); return item; }));
    box.append(source, list);
    choose(0);
  }
  return box;
}

function showWords(translation, pieces, words) {
  const spans = spansOf(words.map(word => word.text), "word", translation);
  let chosen = -1;
  function look(number) {
    chosen = number;
    spans.forEach((span, other) => span.classList.toggle("chosen", other === number));
    const seen = new Map(number < 0 ? [] : words[number].attention);
    pieces.forEach((piece, place) => {
      const weight = seen.get(place) || 0;
      piece.classList.toggle("seen", weight > 0);
      piece.title = weight ? weight.toFixed(2) : "";
      const share = Math.round(45 * Math.sqrt(weight));
      piece.style.backgroundColor = `color-mix(in srgb, var(--bar) ${share}%, transparent)`;
    });
  }
  spans.forEach((span, number) => {
    span.addEventListener("pointerenter", () => look(number));
    span.addEventListener("click", () => look(number));
  });
  translation.onpointerleave = event => { if (event.pointerType === "mouse") look(-1); };
  translation.tabIndex = 0;
  translation.onkeydown = event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    look(Math.min(spans.length - 1, Math.max(0, chosen + step)));
  };
  translation.onblur = () => look(-1);
}

at("source").replaceChildren(...Object.keys(settings.targets).map(code => new Option(settings.names[code], code)));
offerTargets();
at("source").addEventListener("change", () => { offerTargets(); translate(); });
at("target").addEventListener("change", () => { offerSwap(); translate(); });
at("swap").hidden = !Object.keys(settings.targets).some(one => settings.targets[one].some(other => translates(other, one)));
at("arrow").hidden = !at("swap").hidden;
at("swap").addEventListener("click", swap);
at("copy").addEventListener("click", copy);
at("text").addEventListener("input", event => {
  count();
  clearTimeout(timer);
  if (!event.isComposing) timer = setTimeout(translate, PAUSE);
});
at("text").addEventListener("compositionend", () => { clearTimeout(timer); timer = setTimeout(translate, PAUSE); });
at("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); translate(); }
});
at("form").addEventListener("submit", event => { event.preventDefault(); translate(); });
if (settings.keyed) {
  at("key").value = sessionStorage.getItem("key") || "";
  at("key-row").hidden = at("key").value !== "";
}
count();
