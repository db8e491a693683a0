// The page is complete without this: it only keeps what is shown up to date, and asks before a button that is hard to undo.
"use strict";
(function () {
  const root = document.documentElement, stale = document.getElementById("stale");
  let heard = Date.now();
  const fresh = () => { heard = Date.now(); if (stale) stale.hidden = true; };
  setInterval(() => { if (stale && root.dataset.live && Date.now() - heard > 40000) stale.hidden = false; }, 5000);

  const ago = past => {
    for (const [from, size, unit] of [[86400000, 31536000, "y"], [172800, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"]])
      if (past >= from) return Math.floor(past / size) + " " + unit + " ago";
    return past + " s ago";
  };
  setInterval(() => {
    for (const time of document.querySelectorAll("time"))
      time.textContent = ago(Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime)) / 1000)));
  }, 15000);

  document.addEventListener("submit", event => {
    const sure = event.target.dataset.sure;
    if (sure && !confirm(sure)) event.preventDefault();
  });

  const refresh = () => fetch(location.href, { headers: { accept: "text/html" } })
    .then(answer => answer.ok ? answer.text() : null).then(text => {
      if (!text) return;
      const next = new DOMParser().parseFromString(text, "text/html");
      for (const id of ["live", "facts"]) {
        const old = document.getElementById(id), now = next.getElementById(id);
        if (old && now && old.innerHTML !== now.innerHTML) old.replaceWith(now);
      }
      document.title = next.title;
      document.querySelector("link[rel=icon]").href = next.querySelector("link[rel=icon]").getAttribute("href");
    }).catch(() => {});
  if (root.dataset.live) {
    const source = new EventSource(root.dataset.live);
    source.addEventListener("beat", fresh);
    source.addEventListener("changed", () => { fresh(); refresh(); });
  }

  const log = document.getElementById("log");
  if (log && log.dataset.from) {
    log.scrollTop = log.scrollHeight;
    const source = new EventSource(log.dataset.source + "?offset=" + log.dataset.from);
    source.addEventListener("log", event => {
      const low = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      log.append(JSON.parse(event.data).join("\n") + "\n");
      if (low) log.scrollTop = log.scrollHeight;
    });
    source.addEventListener("end", () => source.close());
  }
})();
