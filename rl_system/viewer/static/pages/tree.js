// The prefix tree: length by tokens, height by the sequences that pass through, colour by what they earned or share.

import { h, number, replace, svg, table } from "../dom.js";
import { ask, runApi, runPage } from "../api.js";
import { go, setParameters } from "../app.js";

const WIDTH = 1200;
const HEIGHT = 520;

export async function treePage(body, run, what, at) {
  const parameters = new URLSearchParams(location.search);
  const tree = await ask(`${runApi(run)}/${what}/${at}/tree`, { root: parameters.get("root") ?? "" });
  const byId = new Map(tree.nodes.map((node) => [node.id, node]));
  const first = Math.min(...tree.nodes.map((node) => node.first));
  const sequences = Math.max(...tree.nodes.map((node) => node.first + node.sequences)) - first;
  const begin = Math.min(...tree.nodes.map((node) => node.from));
  const end = Math.max(...tree.nodes.map((node) => node.from + node.tokens));
  const most = Math.max(1e-9, ...tree.nodes.map((node) => Math.abs(node.advantage)));
  const told = h("div", { class: "told", role: "status" });
  const picture = h("div", { class: "tree" });
  const address = (root) => `${location.pathname}?${new URLSearchParams({ ...(root === null ? {} : { root }), ...(colour.value === "advantage" ? {} : { colour: colour.value }) })}`;

  function tell(node) {
    replace(told, h("p", {}, h("b", {}, `${number(node.tokens)} tokens`), ` from token ${number(node.from)} on · ${number(node.sequences)} of ${number(tree.sequences)} sequences pass through: `,
      `${number(node.tokens * (node.sequences - 1))} tokens need not be computed again · mean advantage ${number(node.advantage)}`,
      node.left_out ? ` · ${number(node.left_out)} smaller branches are not drawn` : ""),
    h("pre", { dir: "auto" }, node.text + (node.tokens > 40 ? " …" : "")),
    h("p", {}, node.episodes.map((key) => [h("a", { href: `${runPage(run)}/episodes/${key}` }, key), " "])));
  }

  function fill(node) {
    if (colour.value === "sharing") return `rgb(29 78 216 / ${(0.15 + 0.85 * Math.log2(1 + node.sequences) / Math.log2(1 + tree.sequences)).toFixed(3)})`;
    const strength = (0.12 + 0.8 * Math.abs(node.advantage) / most).toFixed(3);
    if (node.advantage === 0) return "rgb(148 163 184 / 0.3)";
    return node.advantage > 0 ? `rgb(4 120 87 / ${strength})` : `rgb(185 28 28 / ${strength})`;
  }

  function draw() {
    const scaleX = WIDTH / Math.max(1, end - begin);
    const scaleY = HEIGHT / Math.max(1, sequences);
    const shapes = tree.nodes.map((node) => svg("rect", {
      x: String((node.from - begin) * scaleX), y: String((node.first - first) * scaleY), width: String(Math.max(0.5, node.tokens * scaleX)),
      height: String(Math.max(0.5, node.sequences * scaleY)), fill: fill(node), class: "node", "data-node": String(node.id),
    }));
    const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
      "aria-label": `Prefix tree of ${number(tree.sequences)} sequences; the table below names its largest nodes` }, shapes);
    drawn.addEventListener("pointerover", (event) => { const node = byId.get(Number(event.target.dataset?.node ?? -1)); if (node) tell(node); });
    drawn.addEventListener("click", (event) => { const id = event.target.dataset?.node; if (id !== undefined) go(address(id)); });
    replace(picture, drawn);
  }

  const colour = h("select", { id: "colour", onchange: () => { setParameters({ colour: colour.value === "advantage" ? "" : colour.value }); draw(); } },
    h("option", { value: "advantage", selected: parameters.get("colour") !== "sharing" }, "mean advantage"),
    h("option", { value: "sharing", selected: parameters.get("colour") === "sharing" }, "sequences that share it"));
  const largest = [...tree.nodes].sort((a, b) => b.tokens * b.sequences - a.tokens * a.sequences).slice(0, 40);
  replace(body, h("h1", {}, what === "groups" ? `Prefix tree of group ${at}` : `Prefix tree of update ${at}`),
    h("p", { class: "dim" }, `${number(tree.sequences)} sequences of ${number(tree.sequence_tokens)} tokens; ${number(tree.unique_tokens)} are different: a sharing of ${number(tree.sequence_tokens / tree.unique_tokens)}x. `,
      `${number(tree.nodes.length)} of ${number(tree.all_nodes)} nodes are drawn, from left to right by tokens, as high as sequences pass through. Click one to see it alone.`),
    h("div", { class: "bar" }, h("label", { for: "colour" }, "colour by ", colour),
      tree.root === null ? null : [h("a", { class: "button", href: address(null) }, "The whole tree"),
        tree.path.length ? h("a", { class: "button", href: address(String(tree.path[tree.path.length - 1])) }, "One fork up") : null],
      h("span", { class: "dim" }, "Green: above the group's mean. Red: below.")),
    picture, told, h("h2", {}, "Largest nodes"),
    table("By tokens times sequences", [
      ["node", (node) => `${number(node.from)}–${number(node.from + node.tokens)}`],
      ["tokens", (node) => number(node.tokens), "number"],
      ["sequences", (node) => number(node.sequences), "number"],
      ["advantage", (node) => number(node.advantage), "number"],
      ["begins", (node) => node.text.slice(0, 90)],
    ], largest, (node) => address(String(node.id))));
  draw();
  tell(tree.nodes[0]);
  return {};
}
