"""The page to try a server in a browser: one file of HTML, with no asset from outside.

It is made of the endpoints' examples: a field that is a list is an area with one text a line, a
truth value a box, and another field is one line. Colours follow the reader's light or dark
preference.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from typing import Any

_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2430;--soft:#5c6876;
--rule:#ccd3db;--main:#0067a3;--on-main:#fff;--bad:#b3261e;--bad-card:#fdf0ee}
@media(prefers-color-scheme:dark){:root{--page:#11151a;--card:#191f26;--ink:#e4e9ef;--soft:#98a4b2;
--rule:#38424e;--main:#56b4e9;--on-main:#0b1116;--bad:#ff9d92;--bad-card:#2e1c1b}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.35rem;margin:0;overflow-wrap:anywhere}
header p{margin:.2rem 0 1.2rem;color:var(--soft)}
.tabs{display:flex;flex-wrap:wrap;gap:.4rem;margin-bottom:.8rem}
button{font:inherit;border:1px solid var(--rule);border-radius:.5rem;padding:.45rem .9rem;
background:var(--card);color:var(--ink);cursor:pointer}
button[aria-selected=true]{border-color:var(--main);color:var(--main);font-weight:600}
button.go{background:var(--main);border-color:var(--main);color:var(--on-main);font-weight:600}
button:disabled{opacity:.55;cursor:default}
:focus-visible{outline:2px solid var(--main);outline-offset:2px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:.7rem;padding:1rem;
margin-bottom:1rem}
label{display:block;font-weight:600;margin-bottom:.8rem}
label small{font-weight:400;color:var(--soft)}
textarea,input{display:block;width:100%;margin-top:.3rem;font:inherit;color:inherit;
background:var(--page);border:1px solid var(--rule);border-radius:.5rem;padding:.5rem .6rem}
textarea{min-height:8rem;resize:vertical;font-weight:400}
input{font-weight:400}
input[type=checkbox]{display:inline;width:auto;margin:0}
.row{display:flex;flex-wrap:wrap;gap:.8rem;align-items:center}
.time{color:var(--soft)}
.bad{color:var(--bad);background:var(--bad-card);border-color:var(--bad)}
ol{margin:0;padding-left:1.6rem}
li{padding:.35rem 0;border-top:1px solid var(--rule);overflow-wrap:anywhere}
li:first-child{border-top:0}
dl{margin:0;display:grid;grid-template-columns:max-content 1fr;gap:0 .8rem}
dt{color:var(--soft)}dd{margin:0;white-space:pre-wrap}
pre{margin:0;overflow-x:auto;font-size:.85rem}
@media(max-width:32rem){dl{grid-template-columns:1fr}}
[hidden]{display:none!important}
"""

_SCRIPT = """
"use strict";
const forms = [...document.querySelectorAll("form")];
const tabs = [...document.querySelectorAll("[role=tab]")];
const out = document.getElementById("out"), time = document.getElementById("time");
const token = document.getElementById("token");
function choose(name) {
  forms.forEach(f => { f.hidden = f.dataset.name !== name; });
  tabs.forEach(t => t.setAttribute("aria-selected", String(t.dataset.name === name)));
  out.replaceChildren(); time.textContent = "";
}
tabs.forEach(t => t.addEventListener("click", () => choose(t.dataset.name)));
function element(name, text) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  return e;
}
function shown(value) {
  if (!Array.isArray(value)) return typeof value === "string" ? value : JSON.stringify(value);
  if (value.length <= 8 || typeof value[0] !== "number") return JSON.stringify(value);
  return "[" + value.slice(0, 8).map(x => x.toFixed(4)).join(", ") + ", ...] " + value.length +
    " numbers";
}
function show(body) {
  const card = element("div"); card.className = "card";
  if (body.error) { card.className += " bad"; card.textContent = body.error; }
  else {
    const list = element("ol");
    for (const result of body.results) {
      const item = element("li"), facts = element("dl");
      for (const [key, value] of Object.entries(result))
        facts.append(element("dt", key), element("dd", shown(value)));
      item.append(facts); list.append(item);
    }
    card.append(list);
  }
  out.replaceChildren(card);
}
forms.forEach(form => form.addEventListener("submit", async event => {
  event.preventDefault();
  const record = {}, go = form.querySelector("button");
  for (const field of form.querySelectorAll("[name]")) {
    const lines = field.value.split("\\n").filter(line => line !== "");
    if (field.type === "checkbox") record[field.name] = field.checked;
    else if (field.tagName === "TEXTAREA") record[field.name] = lines;
    else if (field.value !== "") record[field.name] = field.value;
  }
  const headers = {"Content-Type": "application/json"};
  if (token) headers.Authorization = "Bearer " + token.value;
  go.disabled = true; const start = performance.now();
  try {
    const answer = await fetch(form.dataset.name,
      {method: "POST", headers, body: JSON.stringify(record)});
    show(await answer.json());
    time.textContent = Math.round(performance.now() - start) + " ms";
  } catch (error) { show({error: "No answer: " + error.message}); }
  go.disabled = false;
}));
choose(forms[0].dataset.name);
const state = document.getElementById("state");
async function watch() {
  let text = "The server does not answer.", again = true;
  try {
    const answer = await fetch("ready"), body = await answer.json();
    const done = body.programs ? body.programs.compiled : 0;
    const all = body.programs ? body.programs.total : 0;
    again = !answer.ok || done < all;
    text = !again ? "" : done + " of " + all + " programs are compiled. " + (answer.ok ?
      "The server answers, and becomes faster." : "The first answer comes soon.");
  } catch (error) { /* it is asked again */ }
  state.textContent = text; state.hidden = !text;
  if (again) setTimeout(watch, 1000);
}
watch();
"""

_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()

PAGE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def page(title: str, examples: Mapping[str, Mapping[str, Any]], *, needs_token: bool) -> str:
    """The document.

    Args:
      title: such as the checkpoint's name.
      examples: a request of each endpoint, by name.
      needs_token: whether it asks for the access token.
    """
    tabs = "".join(
        f'<button type="button" role="tab" data-name="{_text(name)}">{_text(name)}</button>'
        for name in examples
    )
    token = (
        '<div class="card"><label>Access token'
        '<input id="token" type="password" autocomplete="off" spellcheck="false"></label></div>'
        if needs_token
        else ""
    )
    forms = "".join(_form(name, example) for name, example in examples.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>{_text(title)}</h1><p>served by t5x_lite</p></header>"
        f'<p id="state" class="card" role="status" hidden></p>{token}'
        f""
        f'<div class="tabs" role="tablist">{tabs}</div>{forms}<div id="out" aria-live="polite">'
        f"</div><p id=time class=time></p></main><script>{_SCRIPT}</script></body></html>\n"
    )


def _form(name: str, example: Mapping[str, Any]) -> str:
    fields = "".join(_field(key, value) for key, value in example.items())
    body = _text(json.dumps(example, ensure_ascii=False))
    return (
        f'<form data-name="{_text(name)}" hidden><div class="card">{fields}<div class="row">'
        f'<button class="go">Ask</button></div></div><details class="card"><summary>The same by '
        f"HTTP</summary><pre>POST /{_text(name)}\nContent-Type: application/json\n\n{body}</pre>"
        "</details></form>"
    )


def _field(name: str, value: Any) -> str:
    if isinstance(value, list):
        lines = _text("\n".join(map(str, value)))
        return (
            f"<label>{_text(name)} <small>one a line</small>"
            f'<textarea name="{_text(name)}">{lines}</textarea></label>'
        )
    if isinstance(value, bool):
        box = "checked" if value else ""
        return f'<label><input type="checkbox" name="{_text(name)}" {box}> {_text(name)}</label>'
    return f'<label>{_text(name)}<input name="{_text(name)}" value="{_text(value)}"></label>'


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)
