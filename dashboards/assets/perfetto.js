/* A trace is handed to a page of ui.perfetto.dev as its documentation says (visualization/deep-linking-to-perfetto-ui):
   PING until it answers PONG, then the trace, window to window. Nothing happens before a click. */
(() => {
  "use strict";

  const PING_MS = 50, PATIENCE_MS = 30000;

  /* Resolves to whether the other window answered. */
  function answered(other, origin) {
    return new Promise((resolve) => {
      const since = Date.now();
      const finish = (isThere) => {
        window.clearInterval(timer);
        window.removeEventListener("message", hear);
        resolve(isThere);
      };
      const hear = (event) => {
        if (event.source === other && event.origin === origin && event.data === "PONG") finish(true);
      };
      window.addEventListener("message", hear);
      const timer = window.setInterval(() => {
        if (other.closed || Date.now() - since > PATIENCE_MS) finish(false);
        else if (reaches(other)) other.postMessage("PING", origin);
      }, PING_MS);
    });
  }

  /* Until the other page is there the window is a blank one of our own, to which nothing is to be sent. */
  function reaches(other) {
    try {
      return other.location.href === null; // never true: what can be read is still ours
    } catch {
      return true;
    }
  }

  /* The rank of the URL, else the first. */
  function chosen(ranks) {
    const asked = new URLSearchParams(window.location.search).get("rank");
    return ranks.find((one) => String(one.rank) === asked) || ranks[0];
  }

  function save(address) {
    const link = document.createElement("a");
    Object.assign(link, { href: address, download: "" });
    link.click();
  }

  async function hand(button) {
    const { perfetto, at, title, ranks } = button.dataset;
    const { rank, number } = chosen(JSON.parse(ranks));
    const address = `${perfetto}/${number}`;
    const other = window.open(at); // at once: later a browser would take it for an advertisement
    const whole = rank === null ? title : `${title}, rank ${rank}`;
    if (!other) {
      window.spTell("The browser opened no window for Perfetto: the trace is saved instead.", true);
      return save(address);
    }
    window.spTell("Perfetto: the trace is prepared…");
    const isThere = answered(other, new URL(at).origin);
    const answer = await fetch(address);
    if (!answer.ok) return window.spTell("Perfetto: the trace could not be exported.", true);
    const [buffer, has] = await Promise.all([answer.arrayBuffer(), isThere]);
    if (!has) {
      window.spTell("Perfetto did not answer: the trace is saved instead; open it there by hand.", true);
      return save(address);
    }
    const fileName = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition") || "")?.[1];
    other.postMessage({ perfetto: { buffer, title: whole, fileName } }, new URL(at).origin);
    window.spTell("Perfetto has the trace.");
  }

  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-perfetto]");
    if (button) hand(button).catch(() => window.spTell("Perfetto: the trace could not be handed over.", true));
  });
})();
