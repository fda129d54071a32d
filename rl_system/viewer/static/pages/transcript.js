// One episode: what was said, and the tokens it is made of.

import { h, number, replace, reward, versions } from "../dom.js";
import { ask, runApi, runPage } from "../api.js";
import { go, setParameters } from "../app.js";
import { OVERLAYS, legend, tokenStrip } from "../tokens.js";

const LONG = 1200;
const THINK = /^\s*<think>([\s\S]*?)(?:<\/think>|$)([\s\S]*)$/;

export async function transcriptPage(body, run, key) {
  const api = runApi(run);
  const episode = await ask(`${api}/episodes/${key}`);
  const parameters = new URLSearchParams(location.search);
  const overlay = parameters.get("overlay") in OVERLAYS ? parameters.get("overlay") : "logprob";
  const place = h("div");

  function drawTokens(which) {
    const now = new URLSearchParams(location.search);
    const range = (now.get("tokens") ?? "").match(/^(\d+)-(\d+)$/);
    const picked = range ? [Number(range[1]), Number(range[2])] : null;
    const turnPicked = now.get("turn") === null ? null : Number(now.get("turn"));
    replace(place, h("p", { class: "dim" }, legend(which)), episode.turns.map((turn, at) => {
      const mine = turnPicked === at ? picked : null;
      const onPick = ([from, to]) => setParameters({ turn: String(at), tokens: `${from}-${to}` });
      const context = turn.context_ids.map((id, position) => ({ id, text: turn.context?.[position], sampled: false, position: position - turn.context_ids.length }));
      const response = turn.response_ids.map((id, position) => ({ id, text: turn.response?.[position], sampled: true, position,
        logprob: turn.logprobs[position], version: turn.versions[position] }));
      const from = turn.prompt_extends === null ? "a prompt of its own" : `goes on from turn ${turn.prompt_extends}`;
      return h("section", { id: `turn-${at}`, class: turnPicked === at ? "turn picked" : "turn", "aria-label": `Tokens of turn ${at}` },
        h("h3", {}, h("a", { href: `?turn=${at}`, onclick: (event) => { event.preventDefault(); setParameters({ turn: String(at), tokens: "" }).then(() => drawTokens(which)); } }, `Turn ${at}`),
          h("small", {}, ` ${from} · ${number(response.length)} tokens sampled · finish reason ${turn.finish_reason ?? "–"}${turn.reward === null ? "" : ` · reward ${number(turn.reward)}`}${turn.advantage === null ? "" : ` · advantage ${number(turn.advantage)}`}`)),
        context.length ? h("details", { open: mask(which) }, h("summary", {}, `${number(context.length)} tokens of prompt that are new here`), tokenStrip(`Prompt of turn ${at}`, context, which)) : null,
        tokenStrip(`Response of turn ${at}`, response, which, { picked: mine, onPick }));
    }));
  }

  const choice = h("select", { id: "overlay", onchange: (event) => { setParameters({ overlay: event.target.value }); drawTokens(event.target.value); } },
    Object.entries(OVERLAYS).map(([value, text]) => h("option", { value, selected: value === overlay }, text)));
  const facts = [
    ["reward", reward(episode.reward)], ["advantage", number(episode.advantage)], ["task", episode.task], ["domain", episode.domain],
    ["split", episode.split], ["ended", episode.ended], ["turns", number(episode.turns.length)], ["tokens sampled", number(episode.tokens)],
    ["policy versions", versions(episode.versions)],
    ["trained at update", number(episode.step)], ["staleness", number(episode.staleness)],
    ...(episode.dropped ? [["dropped", episode.dropped.replaceAll("_", " ")]] : []), ...(episode.failure ? [["failed", episode.failure]] : []),
    ...parts(episode.reward_parts, ""), ...parts(episode.counts, ""), ...parts(episode.timings, ", s"),
  ];
  const others = episode.members.length > 1 ? h("nav", { class: "bar", "aria-label": "Members of the group" },
    episode.members.map((member) => h("a", { href: `${runPage(run)}/episodes/${member}`, "aria-current": member === key ? "page" : null, class: "button" }, member)),
    h("a", { class: "button", href: `${runPage(run)}/groups/${episode.group}` }, "side by side")) : null;
  replace(body, h("h1", {}, `Episode ${key}`), others,
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    h("h2", {}, "Transcript"), h("ol", { class: "messages" }, episode.transcript.map(message)),
    h("h2", {}, "Tokens"), h("div", { class: "bar" }, h("label", { for: "overlay" }, "colour by ", choice),
      h("span", { class: "dim" }, "Click a token, with Shift a second one: the address then names the stretch.")), place);
  drawTokens(overlay);
  if (parameters.has("turn")) document.getElementById(`turn-${parameters.get("turn")}`)?.scrollIntoView({ block: "start" });

  function key_(event) {
    const at = episode.members.indexOf(key) + { "[": -1, "]": 1 }[event.key];
    if (at >= 0 && at < episode.members.length) go(`${runPage(run)}/episodes/${episode.members[at]}`);
  }
  return { key: (event) => { if (event.key === "[" || event.key === "]") key_(event); } };
}

const mask = (which) => which === "mask";

function parts(values, unit) {
  return Object.entries(values ?? {}).map(([name, value]) => [`${name.replaceAll("_", " ")}${unit}`, typeof value === "number" ? number(value) : JSON.stringify(value)]);
}

function message(each, at) {
  if (each === null || typeof each !== "object") return h("li", { class: "message" }, text(each));
  const role = String(each.role ?? "message");
  let content = each.content;
  let reasoning = each.reasoning ?? each.reasoning_content;
  const thought = typeof content === "string" && role === "assistant" ? content.match(THINK) : null;
  if (thought) { reasoning = `${reasoning ?? ""}${thought[1]}`; content = thought[2]; }
  const calls = Array.isArray(each.tool_calls) ? each.tool_calls : [];
  const known = new Set(["role", "content", "reasoning", "reasoning_content", "tool_calls", "name"]);
  const rest = Object.entries(each).filter(([name, value]) => !known.has(name) && value !== null);
  const kind = ["system", "user", "assistant", "tool"].includes(role) ? role : "other";
  return h("li", { class: `message ${kind}` },
    h("div", { class: "who" }, h("b", {}, role), each.name ? ` ${text(each.name)}` : "", h("small", { class: "dim" }, ` ${at}`)),
    reasoning ? h("details", { class: "thinking" }, h("summary", {}, "thinking"), h("pre", { dir: "auto" }, text(reasoning))) : null,
    content === null || content === undefined || content === "" ? null : folded(text(content), role === "tool" ? "result" : role === "system" ? "instructions" : "text", role === "tool" || role === "system"),
    calls.map((call) => {
      const inner = call?.function ?? call ?? {};
      return h("details", { class: "call", open: true }, h("summary", {}, "calls ", h("code", {}, text(inner.name ?? "?"))), h("pre", { dir: "auto" }, text(inner.arguments ?? inner)));
    }),
    rest.length ? h("small", { class: "dim" }, rest.map(([name, value]) => `${name} ${text(value)}`).join(" · ")) : null);
}

function folded(content, what, fold) {
  const body = h("pre", { dir: "auto" }, content);
  if (!fold && content.length <= LONG) return body;
  const begin = content.slice(0, 90).replaceAll("\n", " ");
  return h("details", { open: !fold }, h("summary", {}, `${what}, ${number(content.length)} characters `, h("small", { class: "dim" }, begin)), body);
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
