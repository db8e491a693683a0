// The page is complete without this: it only keeps what is shown up to date.
"use strict";
(function () {
  const root = document.documentElement, stale = document.getElementById("stale");
  let heard = Date.now();
  const fresh = () => { heard = Date.now(); if (stale) stale.hidden = true; };
  setInterval(() => { if (stale && root.dataset.live && Date.now() - heard > 40000) stale.hidden = false; }, 5000);
  if (root.dataset.live) {
    const source = new EventSource(root.dataset.live);
    source.addEventListener("beat", fresh);
    source.addEventListener("changed", () => {
      fresh();
      fetch(location.href, { headers: { accept: "text/html" } }).then(r => r.ok ? r.text() : null).then(text => {
        if (!text) return;
        const next = new DOMParser().parseFromString(text, "text/html");
        for (const id of ["live", "facts"]) {
          const old = document.getElementById(id), now = next.getElementById(id);
          if (old && now && old.innerHTML !== now.innerHTML) old.replaceWith(now);
        }
        document.title = next.title;
      }).catch(() => {});
    });
  }
  const log = document.getElementById("log");
  if (log && log.dataset.from) {
    const source = new EventSource(log.dataset.source + "?offset=" + log.dataset.from);
    source.addEventListener("log", event => {
      const low = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      log.append(JSON.parse(event.data).join("\n") + "\n");
      if (low) log.scrollTop = log.scrollHeight;
    });
    source.addEventListener("end", () => source.close());
  }
})();
