// The strip of tokens: coloured by what is laid over them, numbers of the one under the pointer or reached by keys.

import { h, number, replace } from "./dom.js";

export const OVERLAYS = { logprob: "sampled logprob", version: "policy version", mask: "loss mask", none: "nothing" };
const VERSION_COLOURS = ["#dbeafe", "#fef3c7", "#d1fae5", "#fee2e2", "#ede9fe", "#cffafe"];

/** tokens: [{id, text?, sampled, logprob, version, position}]. onPick: told [from, to] of positions. */
export function tokenStrip(label, tokens, overlay, { picked = null, onPick = () => {} } = {}) {
  const numbers = h("output", { class: "numbers" }, "point at a token, or go through them with the arrow keys");
  let at = -1;
  let anchor = -1;
  const spans = tokens.map((token, index) => {
    const span = h("span", { class: token.sampled ? "token" : "token context", "data-at": String(index), dir: "auto" }, shown(token));
    colour(span, token, overlay);
    return span;
  });
  const strip = h("div", { class: "strip", tabindex: "0", role: "group", "aria-label": label }, spans);

  function tell(index) {
    spans[at]?.classList.remove("at");
    at = index;
    const token = tokens[index];
    spans[index].classList.add("at");
    replace(numbers, h("b", {}, `token ${token.position}`), ` id ${token.id} `, h("code", {}, JSON.stringify(token.text ?? "")),
      token.sampled
        ? ` logprob ${number(token.logprob, 4)} · probability ${token.logprob === null || token.logprob === undefined ? "–" : number(Math.exp(token.logprob), 3)} · policy version ${number(token.version)} · sampled: in the loss`
        : " part of the prompt: not in the loss");
  }
  function mark(range) {
    spans.forEach((span, index) => span.classList.toggle("picked", Boolean(range) && tokens[index].position >= range[0] && tokens[index].position <= range[1]));
  }
  strip.addEventListener("pointerover", (event) => { const index = event.target.dataset?.at; if (index !== undefined) tell(Number(index)); });
  strip.addEventListener("click", (event) => {
    const index = event.target.dataset?.at;
    if (index !== undefined) pick(Number(index), event.shiftKey);
  });
  function pick(index, extend) {
    if (!extend || anchor < 0) anchor = index;
    const range = [tokens[Math.min(anchor, index)].position, tokens[Math.max(anchor, index)].position];
    mark(range);
    tell(index);
    onPick(range);
  }
  strip.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, Home: -tokens.length, End: tokens.length }[event.key];
    if (move !== undefined && tokens.length) {
      const next = Math.max(0, Math.min(tokens.length - 1, at + move));
      if (event.shiftKey) pick(next, true); else { anchor = next; tell(next); }
      spans[next].scrollIntoView({ block: "nearest" });
      event.preventDefault();
    } else if (event.key === "Enter" && at >= 0) pick(at, event.shiftKey);
  });
  if (picked) mark(picked);
  return h("div", { class: "tokens" }, strip, numbers);
}

function shown(token) {
  if (token.text === null || token.text === undefined) return `${token.id} `;
  const visible = token.text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
  return visible === "" ? "∅" : visible;
}

function colour(span, token, overlay) {
  if (!token.sampled || overlay === "none") return;
  if (overlay === "mask") span.style.backgroundColor = "#bfdbfe";
  else if (overlay === "version" && token.version !== null && token.version !== undefined)
    span.style.backgroundColor = VERSION_COLOURS[((token.version % VERSION_COLOURS.length) + VERSION_COLOURS.length) % VERSION_COLOURS.length];
  else if (overlay === "logprob" && token.logprob !== null && token.logprob !== undefined) {
    // Certain tokens stay white; one of probability below 1 in 400 has the full colour.
    const strength = Math.min(1, -token.logprob / 6);
    span.style.backgroundColor = `rgba(217, 119, 6, ${(strength * 0.6).toFixed(3)})`;
  }
}

/** The legend of an overlay, in words. */
export function legend(overlay) {
  return { logprob: "White: the sampler was certain. The darker, the less likely was the token that it drew.",
    version: "One colour a policy version; a change of colour is where new weights arrived.",
    mask: "Blue: sampled, and in the loss. Grey: prompt, results of tools, messages of the user.",
    none: "" }[overlay];
}
