// The console's only script: it keeps open pages up to date, and adds keys. Every page works without it.
"use strict";

const byId = (id) => document.getElementById(id);

// -- times: how long ago, kept up to date --------------------

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

function span(seconds) {
  for (const [size, unit] of UNITS) if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
  return `${Math.max(Math.floor(seconds), 0)} s`;
}

function tellTimes() {
  for (const time of document.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    const title = at.toLocaleString();
    if (time.title !== title) time.title = title;
    const left = (at - Date.now()) / 1000;
    let text = left > 0 ? `in ${span(left)}` : `${span(-left)} ago`;
    if (time.classList.contains("clock")) text = at.toLocaleTimeString();
    if (time.textContent !== text) time.textContent = text;
  }
}

// -- parts of the page, as the server sends them --------------------

const opened = (node) => [...node.querySelectorAll("details")].map((one) => one.open);

function show(id, hash, content) {
  let node = byId(id);
  if (!node) {
    const list = id.startsWith("step-") && byId("steps");
    if (!list) return;
    node = document.createElement("div");
    node.id = id;
    list.append(node);
  }
  if (node.dataset.hash === hash) return;
  node.dataset.hash = hash;
  if (node.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) {
    delete node.dataset.hash; // a person is typing there
    return;
  }
  const focus = node.contains(document.activeElement) && document.activeElement;
  const place = focus && [...node.querySelectorAll(focus.tagName)].indexOf(focus);
  const open = opened(node);
  node.innerHTML = content; // the server has escaped all texts
  node.querySelectorAll("details").forEach((one, at) => { if (at < open.length) one.open = open[at]; });
  if (focus) node.querySelectorAll(focus.tagName)[place]?.focus({ preventScroll: true });
}

// A browser has few connections to one server: a page that nobody sees gives its own back, and where many are
// seen the server ends a stream behind its first event; the browser asks again.
function follow(address) {
  let heard = false, first = true;
  if (document.hidden) {
    document.addEventListener("visibilitychange", () => follow(address), { once: true });
    return;
  }
  const source = new EventSource(address);
  source.onmessage = (event) => {
    byId("away").hidden = true;
    const parts = JSON.parse(event.data);
    if (first) { // it names all that there is: steps that are gone since the stream before are not there
      for (const step of document.querySelectorAll("#steps > div")) if (!(step.id in parts)) step.remove();
    }
    first = false;
    for (const [id, part] of Object.entries(parts)) {
      if (part === null) byId(id)?.remove();
      else show(id, ...part);
    }
    tellTimes();
  };
  source.onopen = () => { byId("away").hidden = heard = first = true; };
  source.onerror = () => {
    byId("away").hidden = heard;
    heard = false;
  };
  addEventListener("pagehide", () => source.close());
  document.addEventListener("visibilitychange", () => {
    source.close();
    follow(address);
  }, { once: true });
}

// -- keys --------------------

const VERBS = { a: ["approve", "answer", "resume", "retry", "topup"], x: ["reject", "abort"] };
let afterG = false;

function move(by) {
  const all = [...document.querySelectorAll(".row .main, table.runs td a.main, article.step")];
  if (!all.length) return;
  const here = all.findIndex((one) => one === document.activeElement || one.contains(document.activeElement));
  const next = all[here < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(here + by, 0), all.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("shortcuts").open) return;
  if (event.target.matches("input, textarea, select")) return;
  const key = event.key;
  const page = [...document.querySelectorAll("[data-page]")].find((one) => one.dataset.page === key);
  if (afterG && page) { page.click(); return; }
  afterG = key === "g";
  if (key === "?") byId("shortcuts").showModal();
  else if (key === "j") move(1);
  else if (key === "k") move(-1);
  else if (key === "/" && byId("filter")) byId("filter").focus();
  else if (key === "e" && byId("edit")) {
    byId("edit").open = true;
    byId("edit").querySelector("input:not([type=hidden]), textarea, select")?.focus();
  } else if (VERBS[key]) {
    const found = VERBS[key].map((verb) => document.querySelector(`[data-verb="${verb}"]`)).find(Boolean);
    if (!found) return;
    found.focus();
  } else return;
  event.preventDefault();
}

document.addEventListener("keydown", press);
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) {
    navigator.clipboard?.writeText(button.dataset.copy);
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  }
  if (event.target.closest("[data-shortcuts]")) byId("shortcuts").showModal();
});
document.addEventListener("submit", (event) => {
  // a second click sends nothing a second time
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "1";
});
addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});

tellTimes();
setInterval(tellTimes, 5000);
if (document.body.dataset.live) follow(document.body.dataset.live);
