// A group: its members side by side, and two of them from the token where they part.

import { h, number, replace, reward, table, versions } from "../dom.js";
import { ask, runApi, runPage } from "../api.js";
import { setParameters } from "../app.js";

export async function groupPage(body, run, group) {
  const api = `${runApi(run)}/groups/${group}`;
  const found = await ask(api);
  const names = [...new Set(found.members.flatMap((member) => Object.keys(member.reward_parts ?? {})))];
  const place = h("div");
  const indices = found.members.map((member) => member.index);
  const parameters = new URLSearchParams(location.search);
  const from = (name, fallback) => indices.includes(Number(parameters.get(name) ?? NaN)) ? Number(parameters.get(name)) : fallback;
  let a = from("a", indices[0]);
  // By default the best and the worst: what the advantage is made of.
  const ranked = [...found.members].sort((left, right) => (right.reward ?? 0) - (left.reward ?? 0));
  if (!parameters.has("a")) a = ranked[0].index;
  let b = from("b", ranked[ranked.length - 1].index === a ? indices.find((index) => index !== a) ?? a : ranked[ranked.length - 1].index);

  async function compare() {
    const diff = await ask(`${api}/diff`, { a, b });
    const of = (index) => found.members.find((member) => member.index === index);
    const [left, right] = diff.parted_at;
    const tell = (token) => token ? [h("code", {}, token.text === undefined ? String(token.id) : JSON.stringify(token.text)), token.turn === undefined ? " (prompt)" : ` (turn ${token.turn}, logprob ${number(token.logprob)}, version ${number(token.version)})`] : "its end";
    replace(place,
      h("p", {}, `The first ${number(diff.common)} tokens are the same. `, left || right ? [`Then member ${a} goes on with `, tell(left), ` and earns `, reward(of(a).reward), `; member ${b} with `, tell(right), ` and earns `, reward(of(b).reward), "."] : "They are the same throughout."),
      diff.aligned ? null : h("p", { class: "dim" }, "Too long to be aligned token by token from there on: both rests stand whole."),
      h("div", { class: "columns" }, ["a", "b"].map((side, at) => h("section", { "aria-label": `Member ${at ? b : a}` },
        h("h3", {}, h("a", { href: `${runPage(run)}/episodes/${of(at ? b : a).id}` }, `Member ${at ? b : a}`), h("small", {}, ` ${number(diff.tokens[at])} tokens to the end of turn ${diff.turns[at]}`)),
        h("div", { class: "strip", tabindex: "0", role: "group", "aria-label": `Tokens of member ${at ? b : a}` },
          h("span", { class: "dim" }, diff.common > diff.tail.length ? "… " : ""), diff.tail.map((token) => piece(token, "same")),
          h("span", { class: "part", role: "img", "aria-label": "here they part" }, "⑂"),
          diff.parts.map((part) => part[side].map((token) => piece(token, part.same ? "same" : `only-${side}`))))))));
  }

  const choose = (id, value, set) => h("label", { for: id }, `member ${id} `, h("select", { id, onchange: (event) => { set(Number(event.target.value)); setParameters({ a, b }); compare(); } },
    found.members.map((member) => h("option", { value: String(member.index), selected: member.index === value }, `${member.index}: reward ${number(member.reward)}`))));
  replace(body, h("h1", {}, `Group ${group}`),
    h("p", { class: "dim" }, `${found.members[0].task} · ${found.members[0].domain} · ${found.members.length} members`),
    h("div", { class: "bar" }, h("a", { class: "button", href: `${runPage(run)}/groups/${group}/tree` }, "Prefix tree")),
    table("Members", [
      ["member", (each) => each.id],
      ["reward", (each) => reward(each.reward), "number"],
      ["advantage", (each) => number(each.advantage), "number"],
      ...names.map((name) => [name, (each) => number(each.reward_parts?.[name]), "number"]),
      ["ended", (each) => each.ended],
      ["turns", (each) => number(each.turns), "number"],
      ["tokens", (each) => number(each.tokens), "number"],
      ["errors", (each) => number(each.errors), "number"],
      ["versions", (each) => versions(each.versions), "number"],
      ["used", (each) => each.step !== null ? `update ${each.step}` : each.dropped ? `dropped: ${each.dropped.replaceAll("_", " ")}` : "–"],
    ], found.members, (each) => `${runPage(run)}/episodes/${each.id}`),
    found.members.length > 1 ? [h("h2", {}, "Two members, from where they part"),
      h("div", { class: "bar" }, choose("a", a, (value) => { a = value; }), choose("b", b, (value) => { b = value; })), place] : null);
  if (found.members.length > 1) await compare();
  return {};
}

function piece(token, kind) {
  const words = `token ${token.id}${token.turn === undefined ? ", prompt" : `, turn ${token.turn}, logprob ${number(token.logprob)}, policy version ${number(token.version)}`}`;
  return h("span", { class: `token ${kind}${token.turn === undefined ? " context" : ""}`, title: words, dir: "auto" }, token.text === undefined ? `${token.id} ` : token.text.replaceAll("\n", "↵\n"));
}
