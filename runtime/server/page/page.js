"use strict";
const ZONES = ["shared", "root", "trunk", "leaf", "plain", "scratch"];
const EVERY_MS = 1000, SAMPLES = 120, COLOURS = 6;
const at = (id) => document.getElementById(id);
const open = new Map();
const history = [];
const causes = [];
let before = null, shown = null, key = sessionStorage.getItem("key") || "";

function make(tag, attributes = {}, ...children) {
  const element = document.createElementNS(tag === "rect" ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const number = (value) => Number(value).toLocaleString("en");
const colour = (name) => `var(--${name})`;
const paint = (element, property, value) => { element.style[property] = value; return element; };
const swatch = (name) => paint(make("span", { class: "swatch" }), "background", colour(name));

async function get(path) {
  const answer = await fetch(path, { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
  if (answer.status === 401) { at("key").hidden = false; throw new Error("This server asks for an API key."); }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  at("key").hidden = true;
  return body;
}

function showFigures(stats) {
  at("model").textContent = stats.model;
  const tokens = stats.tokens, rate = tokens.prompt ? `${Math.round(100 * tokens.cached / tokens.prompt)} %` : "–";
  const figures = {
    Running: stats.running, Waiting: stats.waiting, "Hit rate": rate, "Tokens cached": number(tokens.cached),
    "Tokens computed": number(tokens.computed), "Tokens written": number(tokens.output), Leases: stats.leases,
    "Pages free": `${number(stats.pages.free)} of ${number(stats.pages.total)}`, Evicted: number(stats.evicted_pages),
    Preemptions: stats.preemptions,
  };
  at("figures").replaceChildren(...Object.entries(figures).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
  const total = stats.pages.total;
  at("pages").replaceChildren(...ZONES.map((zone) => paint(paint(make("span", {}), "background", colour(zone)), "width", `${100 * stats.pages.cached[zone] / total}%`)));
  const words = ZONES.map((zone) => `${zone} ${number(stats.pages.cached[zone])}`);
  at("pages").setAttribute("aria-label", `Cached pages: ${words.join(", ")}; ${number(total)} in all`);
  at("legend").replaceChildren(...ZONES.map((zone) => make("li", {}, swatch(zone),
    `${zone}: ${number(stats.pages.cached[zone])} pages` + (zone in stats.hits ? `, ${number(stats.hits[zone])} tokens hit` : ""))));
}

function showChart(stats) {
  const now = { cached: stats.tokens.cached, ...stats.misses };
  for (const cause of Object.keys(stats.misses)) if (!causes.includes(cause)) causes.push(cause);
  if (before) history.push(Object.fromEntries(Object.entries(now).map(([name, value]) => [name, Math.max(0, value - (before[name] || 0))])));
  before = now;
  history.splice(0, history.length - SAMPLES);
  const names = ["cached", ...causes], colourOf = (name) => name === "cached" ? "cached" : `c${causes.indexOf(name) % COLOURS}`;
  const most = Math.max(1, ...history.map((sample) => names.reduce((sum, name) => sum + (sample[name] || 0), 0)));
  const width = 600 / SAMPLES, bars = [];
  history.forEach((sample, i) => {
    let y = 120;
    for (const name of names) {
      const height = 118 * (sample[name] || 0) / most;
      y -= height;
      if (height > 0) bars.push(paint(make("rect", { x: (SAMPLES - history.length + i) * width, y, width: width - 0.5, height }), "fill", colour(colourOf(name))));
    }
  });
  at("chart").replaceChildren(...bars);
  at("chart").setAttribute("aria-label", names.map((name) => `${name} ${number(now[name] || 0)}`).join(", ") + " tokens since the server started");
  at("causes").replaceChildren(...names.map((name) => make("li", {}, swatch(colourOf(name)), `${name.replaceAll("_", " ")}: ${number(now[name] || 0)}`)));
}

function nodeElement(node, children) {
  const own = children.get(node.id) || [];
  const line = make("summary", { "data-id": node.id, class: node.num_children ? "" : "childless" }, swatch(node.zone),
    make("b", {}, node.zone), ` ${number(node.num_tokens)} tokens at ${number(node.start)}, ${number(node.num_pages)} pages `);
  if (node.num_children > 1) line.append(make("span", { class: "tag" }, `shared by ${node.num_children}`));
  if (node.locks) line.append(make("span", { class: "tag" }, `in use by ${node.locks}`));
  if (node.lease_s !== null) line.append(make("span", { class: "tag" }, `lease ${Math.ceil(node.lease_s)} s`));
  line.append(" ", make("code", {}, JSON.stringify(node.text)));
  const element = make("details", {}, line, ...own.map((child) => nodeElement(child, children)));
  if (own.length < node.num_children) element.append(make("p", {}, `${node.num_children - own.length} branches are not shown.`));
  element.open = open.has(node.id) ? open.get(node.id) : node.num_children > 1 || node.start === 0;
  element.addEventListener("toggle", () => open.set(node.id, element.open));
  return element;
}

function showTree(tree) {
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : undefined;
  const children = new Map();
  for (const node of tree.nodes) children.set(node.parent, [...(children.get(node.parent) || []), node]);
  at("tree").replaceChildren(...(children.get(null) || []).map((node) => nodeElement(node, children)));
  const shared = tree.nodes.filter((node) => node.num_children > 1).length;
  at("tree-note").textContent = `${number(tree.num_nodes)} nodes, ${number(tree.nodes.length)} shown, ${number(shared)} shared prefixes; pages of ${tree.page_size} tokens`;
  if (focused) for (const line of at("tree").querySelectorAll("summary")) if (line.dataset.id === focused) line.focus({ preventScroll: true });
}

function showRequests(list) {
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.request : undefined;
  at("requests").replaceChildren(...list.map((one) => {
    const button = make("button", { type: "button", "data-request": one.id, "aria-controls": "explanation" }, one.id.slice(0, 24));
    button.addEventListener("click", () => { shown = one.id; showExplanation(one); });
    const cells = [button, number(one.prompt_tokens), number(one.matched_tokens), number(one.ceiling_tokens), (one.cause || "").replaceAll("_", " ")];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  }));
  if (focused) for (const button of at("requests").querySelectorAll("button")) if (button.dataset.request === focused) button.focus({ preventScroll: true });
}

function showExplanation(one) {
  at("explanation").hidden = false;
  at("explanation").textContent = JSON.stringify(one, null, 2);
}

async function refresh() {
  try {
    const [stats, tree, late] = await Promise.all([get("v1/cache/stats"), get("v1/cache/tree"), get("v1/explanations?limit=15")]);
    showFigures(stats);
    showChart(stats);
    showTree(tree);
    showRequests(late.data);
    at("state").textContent = "Live";
  } catch (error) {
    at("state").textContent = error.message;
  }
  setTimeout(refresh, EVERY_MS);
}

at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").querySelector("input").value;
  sessionStorage.setItem("key", key);
});
refresh();
